// Package cookbook has the code of the recipes in docs/cookbook.md. Each file is one recipe. Their tables are in the
// schema shop.
package cookbook

import (
	"embed"
	"io/fs"
)

//go:embed migrations
var files embed.FS

// Migrations are the tables of the recipes.
var Migrations, _ = fs.Sub(files, "migrations") // the folder is embedded: there is no error

// An Order is the payload of most messages here.
type Order struct {
	Item   string `json:"item"`
	Amount int64  `json:"amount"` // in cents
}
