package payment

import (
	"errors"
	"testing"

	"github.com/sagamill/sagamill/consumer"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status int
		body   string
		want   string
	}{
		{201, `{}`, "done"},
		{200, `<html>`, "done"},
		{402, `{"code":"card-declined","detail":"why"}`, "declined"},
		{400, `{"code":"movement-invalid"}`, "terminal"},
		{422, `{"code":"key-reused"}`, "terminal"},
		{404, `{"code":"charge-unknown"}`, "terminal"},
		{409, `{"code":"in-progress"}`, "again"},
		{503, `{"code":"try-again"}`, "again"},
		{504, `<html>gateway timeout</html>`, "again"},
		{404, `<html>no route: a deploy is under way</html>`, "again"},
		{401, ``, "again"},
		{429, ``, "again"},
	} {
		err := judge(tt.status, []byte(tt.body))
		var declined *DeclinedError
		got := "again"
		switch {
		case err == nil:
			got = "done"
		case errors.As(err, &declined):
			got = "declined"
		case errors.Is(err, consumer.ErrTerminal):
			got = "terminal"
		}
		if got != tt.want {
			t.Errorf("%d %s: %s (%v), want %s", tt.status, tt.body, got, err, tt.want)
		}
	}
}
