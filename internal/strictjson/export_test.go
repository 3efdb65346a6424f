package strictjson

// Check is checkDocument, so that a benchmark can leave out the decoding.
var Check = checkDocument
