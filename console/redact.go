package console

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/sagamill/sagamill/operator"
)

// The kinds of [Content].
const (
	KindPayload = "payload" // the payload of a message
	KindHeaders = "headers" // of a message: a JSON object
	KindState   = "state"   // of a saga: JSON
	KindError   = "error"   // of a handler or of the broker, in full or its beginning; the reason of a saga or of a step
	KindStack   = "stack"   // of a handler that panicked, in full or its beginning
	KindReason  = "reason"  // what a person has written into the journal
)

// Content is what [Options].Redact may change before a page shows it.
type Content struct {
	Kind string // one of the kinds
	Name string // the topic of the message, or the name of the saga; "": of several, or of none
	Data []byte
}

// redact returns what a page shows of content, and whether it is cut off.
func (c *Console) redact(content Content) (data []byte, cut bool) {
	data = content.Data
	if c.opts.Redact != nil {
		data = c.opts.Redact(content)
	}
	if len(data) > c.opts.MaxContent {
		return data[:c.opts.MaxContent], true
	}
	return data, false
}

// redactText is redact for the text of an error, of a stack or of a person.
func (c *Console) redactText(kind, name, text string) string {
	if text == "" {
		return ""
	}
	data, cut := c.redact(Content{Kind: kind, Name: name, Data: []byte(text)})
	if cut {
		return strings.ToValidUTF8(string(data), "") + "…"
	}
	return string(data)
}

// redactLetter redacts the texts of a letter as it comes from the database, but not its payload and its headers.
func (c *Console) redactLetter(l *operator.DeadLetter) {
	l.Error, l.Stack = c.redactText(KindError, l.Topic, l.Error), c.redactText(KindStack, l.Topic, l.Stack)
	for i := range l.Earlier {
		f := &l.Earlier[i]
		f.Error, f.Stack = c.redactText(KindError, l.Topic, f.Error), c.redactText(KindStack, l.Topic, f.Stack)
	}
}

// redactLetters does the same to several.
func (c *Console) redactLetters(all []operator.DeadLetter) []operator.DeadLetter {
	for i := range all {
		c.redactLetter(&all[i])
	}
	return all
}

// redactMessage redacts the broker's answers about a message, and about the one that it waits behind.
func (c *Console) redactMessage(m *operator.OutboxMessage) {
	m.Reason = c.redactText(KindError, m.Topic, m.Reason)
	if m.Behind != nil {
		m.Behind.Reason = c.redactText(KindError, m.Behind.Topic, m.Behind.Reason)
	}
}

// redactRefusals redacts why sagas refuse a decision: such a text may repeat the reason of a saga.
func (c *Console) redactRefusals(name string, counts map[string]int) map[string]int {
	if c.opts.Redact == nil {
		return counts
	}
	shown := map[string]int{}
	for reason, n := range counts {
		shown[c.redactText(KindError, name, reason)] += n
	}
	return shown
}

// errorFields are the members of the filter of an entry of the journal that have a part of an error, by the beginning of
// the verb. A filter of the outbox calls it a reason.
var errorFields = map[string]string{"dead ": "error", "outbox ": "reason"}

// redactRun redacts what a person has written, and the part of an error that the person has searched for.
func (c *Console) redactRun(v *runView) {
	v.Why = c.redactText(KindReason, "", v.Why)
	v.Conditions = slices.Clone(v.Conditions)
	for i := range v.Conditions {
		if one := &v.Conditions[i]; one.Name == "error" {
			one.Value = c.redactText(KindError, "", one.Value)
		}
	}
}

// redactActivity redacts what a person has written, and the part of an error that the person has searched for.
func (c *Console) redactActivity(a *operator.Activity) {
	a.Why = c.redactText(KindReason, "", a.Why)
	if c.opts.Redact == nil || len(a.What) == 0 {
		return
	}
	var fields map[string]string
	if json.Unmarshal(a.What, &fields) != nil {
		return
	}
	for begin, field := range errorFields {
		if strings.HasPrefix(a.Verb, begin) && fields[field] != "" {
			fields[field] = c.redactText(KindError, fields["topic"], fields[field])
			a.What, _ = json.Marshal(fields) // texts can be encoded
		}
	}
}
