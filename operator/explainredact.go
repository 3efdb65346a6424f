package operator

// redact passes the texts of others through hook; nil leaves them. It is called before sentences are made of them. These
// texts are errors of handlers and of the broker, reasons of instances and steps, and what people have written.
func (p *SagaPart) redact(hook func(kind, name, text string) string) {
	if hook == nil {
		return
	}
	change := func(kind, name string, texts ...*string) {
		for _, text := range texts {
			if *text != "" {
				*text = hook(kind, name, *text)
			}
		}
	}
	for i := range p.Outbox.Messages {
		m := &p.Outbox.Messages[i]
		change("error", m.Topic, &m.Reason)
		if m.Behind != nil {
			change("error", m.Behind.Topic, &m.Behind.Reason)
		}
	}
	for i := range p.Inbox.Letters {
		change("error", p.Inbox.Letters[i].Topic, &p.Inbox.Letters[i].Error)
	}
	for i := range p.Sagas {
		t := &p.Sagas[i]
		change("error", t.Saga, &t.Reason, &t.Fault)
		for k := range t.Steps {
			change("error", t.Saga, &t.Steps[k].Reason)
		}
		for k := range t.Nested { // a step points to its nested instance here
			change("error", t.Nested[k].Saga, &t.Nested[k].Reason)
		}
		for k := range t.Journal {
			change("reason", t.Saga, &t.Journal[k].Why)
		}
	}
}
