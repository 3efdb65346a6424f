package consumer

import (
	"errors"
	"mime"
	"strings"
)

// checkContentType returns an error where the sender says that the payload is not
// what [On] decodes: JSON, in UTF-8. One that says nothing is believed to send it.
func checkContentType(value string) error {
	if value == "" {
		return nil
	}
	media, params, err := mime.ParseMediaType(value)
	if err != nil {
		return errors.New("property content-type is malformed") // its text can hold anything
	}
	if media != "application/json" && media != "text/json" && !strings.HasSuffix(media, "+json") {
		return errors.New("property content-type does not say JSON")
	}
	switch strings.ToLower(params["charset"]) {
	case "", "utf-8", "utf8", "us-ascii":
		return nil
	}
	return errors.New("property content-type names another charset than UTF-8")
}
