// The tools that `make check` runs, with their versions. A module file of its
// own keeps what they need out of go.mod, which every user of the library gets.
module github.com/sagamill/sagamill

go 1.26.0

tool (
	go.elastic.co/go-licence-detector
	golang.org/x/vuln/cmd/govulncheck
	honnef.co/go/tools/cmd/staticcheck
)

require (
	github.com/BurntSushi/toml v1.4.1-0.20240526193622-a339e1f7089c // indirect
	github.com/cyphar/filepath-securejoin v0.7.0 // indirect
	github.com/google/licenseclassifier v0.0.0-20260218193730-3cfbab2d0e0d // indirect
	github.com/sergi/go-diff v1.4.0 // indirect
	go.elastic.co/go-licence-detector v0.11.1 // indirect
	golang.org/x/exp/typeparams v0.0.0-20231108232855-2478ac86f678 // indirect
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/telemetry v0.0.0-20260924152758-ed294f943157 // indirect
	golang.org/x/tools v0.51.0 // indirect
	golang.org/x/vuln v1.1.4 // indirect
	honnef.co/go/tools v0.8.2 // indirect
)
