// Package console serves pages on which a person sees every saga of one or several databases, sees why it waits, and acts
// on it. A [Console] is an http.Handler: mount it into a service, or run sagamill console.
//
//	pages, err := console.New([]console.Database{{Name: "orders", Pool: pool}}, &console.Options{Authorize: authorize})
//	mux.Handle("/ops/", http.StripPrefix("/ops", pages))
//
// All data comes from package operator. The pool's role may be a reader; without the grants of an operator a change ends
// with a page that says so. Without Options.Authorize nobody can change anything. A server for the console sets no
// WriteTimeout, or a stream ends with it and the browser connects again.
//
// # The way of a request
//
//	guard.go    headers, exact path, limits, who it is, where a form comes from; panics and errors become pages
//	places.go   which databases and schemas
//	page.go     a page reads its data, and its template is rendered as a whole
//	live.go     while the page is open, a stream sends the blocks that have changed; memo.go shares what they read
//	change.go   a change: preview, then confirmation; token.go signs what was previewed
//	run.go      a confirmed change runs, with progress, pause and resume, and all are listed; runelsewhere.go: of another process
//	redact.go   what Options.Redact gets
//	assets.go   static files, with a digest in the name
//
// overview.go and sparkline.go are the first page, sagas.go is the list, decide.go is the change of one saga or of many.
// format.go has the functions of templates. assets/VENDORED.md lists the files of others.
//
// saga.go is the page of one saga. sagadrawing.go draws its steps, and sagagraph.go the messages of a saga without an
// instance. sagaevents.go is the timeline. sagamessages.go shows what messages and letters carry.
//
// outbox.go, topology.go with management.go, journal.go and why.go are pages that only read. requests.go looks a key up, and
// keys.go lists the requests whose outcome is unknown, and decides about one.
//
// letters.go has the groups and the list of dead letters, letter.go one letter and the form that edits it, letterchange.go
// their changes, diff.go what an edit changes.
//
// # How a page is added
//
//  1. Write a file for it with a function that returns a [page]: its path, its title, its template and show. show reads
//     the query from request.values, chooses places, reads from package operator and returns a view.
//  2. Add the function to Console.listPages. The path is exact: what a page is about is in the query, never in the path.
//  3. Write templates/NAME.html, which defines "content". The view is .Data. Links begin with {{$.Root}}. Text of others,
//     such as a key, a reason or a header, goes through {{text}}. Times use the templates "time" and "at" of parts.html,
//     states "state". There is no inline script and no inline style: what is missing goes into assets/console.css.
//  4. For a live part, set live and blocks, define a template for each block, and put it into an element with sse-swap.
//     What live reads goes through a memo. Nothing is read while no browser has the page open.
//  5. Payloads, headers and states go through Console.redact, which also limits their size. Errors, stacks and reasons go
//     through the functions of redact.go, where they come from the database: TestRedactGetsEverything looks for the rest.
//  6. Add its path to pagesOfTests in the tests: so its headers, its errors and its escapes are tested.
//
// An error of show is a [pageError], which says what happened and what to do, or any other error: Console.explainError
// makes a page of it. A page never shows the text of an error of the server.
//
// # How a change is added
//
// A verb is a changeKind: write parse, and a type that implements change. Add it to Console.changeKinds. Its preview page
// is then change/NAME, with the parameters in the query. A page links to it or has a form with method GET.
//
// All the rest is common: the preview with counts and refusals, the reason, the rate, the count that a person types for
// more than 100 objects, the form token, the journal's actor, progress, pause and resume.
//
// # Why a form changes things once
//
// A form token names one run. A second POST of it finds the run of the first. A process that does not know the run, after
// a restart or beside another one, applies the change again, and that is harmless. The token has the time of the preview,
// by the clock of each database, and apply leaves alone each object that has changed since. The check and the change are
// one transaction. So what is done stays done once, and what an interrupted run has left is done then. The address of a run
// has a signed note of it: by that, a process that does not know the run counts what is left, and does it.
package console
