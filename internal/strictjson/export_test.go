package strictjson

// Check is check, so that a benchmark can leave out the decoding.
var Check = check
