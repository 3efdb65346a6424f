package gateway

import (
	"net/http"

	"github.com/sagamill/sagamill/examples/order-saga/internal/api"
)

// headerLoseReply marks a response that shall not reach the client. It is not
// among the headers that are stored with a response, so a replay gets through.
const headerLoseReply = "X-Lose-Reply"

// dropMarkedReplies stands where a proxy would: the charge behind it is committed,
// and the client gets a 504.
func dropMarkedReplies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&lossyWriter{ResponseWriter: w}, r)
	})
}

type lossyWriter struct {
	http.ResponseWriter
	lost bool
}

// WriteHeader answers 504 instead of a response that is marked.
func (w *lossyWriter) WriteHeader(status int) {
	if w.Header().Get(headerLoseReply) == "" {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.lost = true
	clear(w.Header())
	api.Program.WriteProblem(w.ResponseWriter, http.StatusGatewayTimeout, "reply-lost", "the processor's answer did not arrive in time")
}

// Write drops the body of a response that is lost.
func (w *lossyWriter) Write(body []byte) (int, error) {
	if w.lost {
		return len(body), nil
	}
	return w.ResponseWriter.Write(body)
}
