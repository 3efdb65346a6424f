package consoleserver

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sagamill/sagamill/console"
)

// The token is exchanged for a cookie and leaves the address. Without the cookie, with another token or for another host
// nothing is shown.
func TestAccessNeedsTheTokenOnce(t *testing.T) {
	t.Parallel()
	a := newAccess("ann", console.RoleOperator)
	a.bind(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7470}, "127.0.0.1:0")
	handler := a.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("page")) }))
	send := func(host, target, cookie string) *http.Response {
		r := httptest.NewRequest(http.MethodGet, target, nil)
		if r.Host = host; cookie != "" {
			r.Header.Set("Cookie", cookie)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Result()
	}
	const host = "127.0.0.1:7470"
	if got := a.firstURL(); got != "http://"+host+"/?token="+a.token || len(a.token) < 26 {
		t.Errorf("the URL is %s", got)
	}
	first := send(host, "/?token="+a.token, "")
	cookies := first.Cookies()
	if first.StatusCode != http.StatusSeeOther || first.Header.Get("Location") != "/" || len(cookies) != 1 {
		t.Fatalf("the token = %d to %q with %d cookies", first.StatusCode, first.Header.Get("Location"), len(cookies))
	}
	cookie := cookies[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || !strings.Contains(cookie.Name, "7470") || cookie.Value == a.token {
		t.Errorf("the cookie is %v", cookie)
	}
	pair := cookie.Name + "=" + cookie.Value
	for name, tt := range map[string]struct {
		host, target, cookie string
		want                 int
	}{
		"with the cookie":   {host, "/sagas", pair, http.StatusOK},
		"by localhost":      {"localhost:7470", "/sagas", pair, http.StatusOK},
		"without a cookie":  {host, "/sagas", "", http.StatusForbidden},
		"another cookie":    {host, "/sagas", cookie.Name + "=x", http.StatusForbidden},
		"the token again":   {host, "/sagas?token=" + a.token, "", http.StatusForbidden},
		"another token":     {host, "/?token=x", "", http.StatusForbidden},
		"an empty token":    {host, "/?token=", pair, http.StatusForbidden},
		"of another host":   {"example.com:7470", "/sagas", pair, http.StatusMisdirectedRequest},
		"without a port":    {"127.0.0.1", "/sagas", pair, http.StatusMisdirectedRequest},
		"token, other host": {"example.com", "/?token=" + a.token, "", http.StatusMisdirectedRequest},
	} {
		if got := send(tt.host, tt.target, tt.cookie); got.StatusCode != tt.want || got.StatusCode != http.StatusOK && len(got.Cookies()) > 0 {
			t.Errorf("%s: %d with %d cookies, want %d", name, got.StatusCode, len(got.Cookies()), tt.want)
		}
	}
	if who, role, err := a.authorize(nil); who != "ann" || role != console.RoleOperator || err != nil {
		t.Errorf("authorize = %s, %s, %v", who, role, err)
	}
}
