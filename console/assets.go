package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"net/http"
	"path"
	"strings"
)

const assetPrefix = "assets/"

//go:embed assets/*.js assets/*.css assets/*.svg
var assetFiles embed.FS

// An assetSet has the static files. The name of each in URLs has a digest of its content, so that browsers keep it.
type assetSet struct {
	names   map[string]string // from htmx.js to htmx.d6fdc75f204e.js
	content map[string][]byte // by the second of these
}

var assetTypes = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

func loadAssets() (assetSet, error) {
	s := assetSet{names: map[string]string{}, content: map[string][]byte{}}
	entries, err := assetFiles.ReadDir("assets")
	if err != nil {
		return s, fmt.Errorf("console: %w", err)
	}
	for _, entry := range entries {
		data, err := assetFiles.ReadFile(path.Join("assets", entry.Name()))
		if err != nil {
			return s, fmt.Errorf("console: %w", err)
		}
		digest := sha256.Sum256(data)
		base, ext := strings.TrimSuffix(entry.Name(), path.Ext(entry.Name())), path.Ext(entry.Name())
		name := base + "." + hex.EncodeToString(digest[:6]) + ext
		s.names[entry.Name()], s.content[name] = name, data
	}
	return s, nil
}

// Path returns the path of a static file below the base. It panics if there is no such file: a template names it.
func (s assetSet) Path(name string) string {
	if s.names[name] == "" {
		panic(fmt.Sprintf("console: there is no static file %q", name))
	}
	return assetPrefix + s.names[name]
}

// serveAsset answers with a static file. Its name is looked up, and never a path of a file system.
func (c *Console) serveAsset(w http.ResponseWriter, r *request, name string) error {
	content, found := c.assets.content[name]
	if !found {
		return &pageError{Status: http.StatusNotFound, What: "There is no such file.", Advice: "Reload the page: the console may have been updated."}
	}
	if r.http.Method != http.MethodGet && r.http.Method != http.MethodHead {
		return errMethod
	}
	h := w.Header()
	h.Set("Content-Type", assetTypes[path.Ext(name)])
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	_, _ = w.Write(content) // the browser has gone
	return nil
}
