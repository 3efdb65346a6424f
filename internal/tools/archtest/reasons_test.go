package archtest

import (
	"strings"
	"testing"
)

// A person who finds a dead letter looks its reason up in docs/faq.md.
func TestEveryReasonIsInTheQuestions(t *testing.T) {
	t.Parallel()
	all, err := parsedModule()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range checkReasons(mustReadRoot(t, faqPage), all) {
		t.Error(wrong)
	}
}

func TestCheckReasons(t *testing.T) {
	t.Parallel()
	var all []*file
	for path, src := range map[string]string{
		"consumer/receive.go": "package consumer\n\nconst (\n\tReasonOld Reason = \"too-old\"\n\tReasonBad Reason = \"bad\"\n\tother = \"other\"\n)\n",
		"rabbitmq/errors.go":  "package rabbitmq\n\nvar ErrLarge, ErrAway = fmt.Errorf(\"rabbitmq: it is large: %w\", outbox.ErrRefused), errors.New(\"rabbitmq: away\")\n",
		"outbox/lane.go":      "package outbox\n\nvar errUnknown = fmt.Errorf(\"%w: unknown %d times\", ErrRefused, strikes)\n",
		"operator/decide.go":  "package operator\n\nvar ErrRefused = machine.ErrRefused\n",
	} {
		f, err := parseFile(path, []byte(src))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f)
	}
	page := "### `too-old`\n\n### `bad`\n\n### Is it a server?\n\n| `it is large` | x |\n| `unknown` | x |\n"
	for name, tt := range map[string]struct{ page, want string }{
		"complete":     {page, ""},
		"no entry":     {strings.Replace(page, "### `bad`", "`bad`", 1), "no entry about the reason bad"},
		"one too many": {page + "### `gone`\n", "no dead letter has the reason gone"},
		"twice":        {page + "### `bad`\n", "two entries about bad"},
		"no refusal":   {strings.Replace(page, "`it is large`", "`it`", 1), `refused with "it is large"`},
		"no count":     {strings.Replace(page, "| `unknown` |", "| unknown |", 1), `refused with "unknown"`},
		"empty":        {"", "no entry about the reason too-old"},
	} {
		got := strings.Join(checkReasons(tt.page, all), "\n")
		if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	if got := checkReasons(page, nil); len(got) != 1 {
		t.Errorf("without code: %q, want one message", got)
	}
}
