package consoleserver

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/sagamill/sagamill/console"
)

// An access lets in whoever has the URL that is printed at the start. The token of that URL is exchanged for a cookie, so that
// it does not stay in the address.
type access struct {
	actor   console.Actor
	role    console.Role
	token   string
	session string // the value of the cookie
	cookie  string // its name, with the port: cookies are common to all ports of a host
	address string
	hosts   []string // the values of Host; empty: any
}

func newAccess(actor console.Actor, role console.Role) *access {
	return &access{actor: actor, role: role, token: rand.Text(), session: rand.Text()}
}

// bind says at which address the console listens. listen is the address that was asked for.
func (a *access) bind(addr net.Addr, listen string) {
	host, _, _ := net.SplitHostPort(listen)
	_, port, _ := net.SplitHostPort(addr.String())
	a.cookie = "sagamill_console_" + port
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		a.address = net.JoinHostPort("127.0.0.1", port)
		return
	}
	a.address = net.JoinHostPort(host, port)
	a.hosts = []string{a.address, net.JoinHostPort("localhost", port), net.JoinHostPort("127.0.0.1", port), net.JoinHostPort("::1", port)}
}

// firstURL returns the URL with the token.
func (a *access) firstURL() string {
	return (&url.URL{Scheme: "http", Host: a.address, Path: "/", RawQuery: url.Values{"token": {a.token}}.Encode()}).String()
}

// wrap refuses requests without the cookie, and those for another host, which a page of another site could make a
// browser send. It exchanges the token.
func (a *access) wrap(pages http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case len(a.hosts) > 0 && !slices.Contains(a.hosts, r.Host):
			refuse(w, http.StatusMisdirectedRequest, "The console answers at http://"+a.address+" only.")
		case r.Method == http.MethodGet && r.URL.Path == "/" && r.URL.Query().Has("token"):
			a.exchangeToken(w, r)
		case !a.hasSession(r):
			refuse(w, http.StatusForbidden, "Open the URL that was printed when the console started. If you have just done so, reload this page.")
		default:
			pages.ServeHTTP(w, r)
		}
	})
}

func (a *access) exchangeToken(w http.ResponseWriter, r *http.Request) {
	if subtle.ConstantTimeCompare([]byte(r.URL.Query().Get("token")), []byte(a.token)) != 1 {
		refuse(w, http.StatusForbidden, "This token is not that of the running console: copy the URL that was printed when it started.")
		return
	}
	http.SetCookie(w, &http.Cookie{Name: a.cookie, Value: a.session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func (a *access) hasSession(r *http.Request) bool {
	cookie, err := r.Cookie(a.cookie)
	return err == nil && subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(a.session)) == 1
}

// authorize is console.Options.Authorize. wrap has checked the cookie.
func (a *access) authorize(*http.Request) (console.Actor, console.Role, error) {
	return a.actor, a.role, nil
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Security-Policy", "default-src 'none'")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Error(w, text, status) // sets nosniff
}
