package gateway

import (
	"net/http"

	"github.com/sagamill/sagamill/examples/order-saga/internal/api"
)

// headerLoseReply marks a response that must not reach the client. It is not stored with the
// response, so a replay reaches the client.
const headerLoseReply = "X-Lose-Reply"

// dropMarkedReplies answers 504 in place of a marked response, as a proxy between client and
// gateway would. The charge is committed nevertheless.
func dropMarkedReplies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&lossyWriter{ResponseWriter: w}, r)
	})
}

type lossyWriter struct {
	http.ResponseWriter
	lost bool
}

// WriteHeader answers 504 if the response is marked.
func (w *lossyWriter) WriteHeader(status int) {
	if w.Header().Get(headerLoseReply) == "" {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.lost = true
	clear(w.Header())
	api.Program.WriteProblem(w.ResponseWriter, http.StatusGatewayTimeout, "reply-lost", "the processor's answer did not arrive in time")
}

// Write drops the body of a marked response.
func (w *lossyWriter) Write(body []byte) (int, error) {
	if w.lost {
		return len(body), nil
	}
	return w.ResponseWriter.Write(body)
}
