package telemetry

import "go.opentelemetry.io/otel/attribute"

// The instrumentation scopes. Exporters may send a scope's name as the label otel_scope_name,
// so a change of one is a change of every series below it.
const (
	scopeIdempotency  = "github.com/sagamill/sagamill/idemkey/idemotel"
	scopeOutbox       = "github.com/sagamill/sagamill/outbox/outboxotel"
	scopeConsumer     = "github.com/sagamill/sagamill/consumer/consumerotel"
	scopeOrchestrator = "github.com/sagamill/sagamill/saga/sagaotel"
)

// The labels of metrics.
const (
	labelRoute   = attribute.Key("http.route")
	labelResult  = attribute.Key("result")
	labelOutcome = attribute.Key("outcome")
	labelPart    = attribute.Key("part")
	labelOp      = attribute.Key("op")
	labelState   = attribute.Key("state")
	labelLeaf    = attribute.Key("leaf")
	labelBound   = attribute.Key("le")
	labelStep    = attribute.Key("step")
	labelKind    = attribute.Key("kind")
	labelReason  = attribute.Key("reason")
	labelTopic   = attribute.Key("topic")
	labelStatus  = attribute.Key("status")
)

// errorType is a label of attempts and an attribute of spans.
const errorType = attribute.Key("error.type")

// The attributes of spans. Those of messaging follow OpenTelemetry's semantic conventions,
// version 1.43.
const (
	spanSystem        = attribute.Key("messaging.system")
	spanOperation     = attribute.Key("messaging.operation.name")
	spanOperationType = attribute.Key("messaging.operation.type")
	spanDestination   = attribute.Key("messaging.destination.name")
	spanMessageID     = attribute.Key("messaging.message.id")
	spanConversation  = attribute.Key("messaging.message.conversation_id")
	spanBodySize      = attribute.Key("messaging.message.body.size")
	spanStep          = attribute.Key("sagamill.step")
	spanType          = attribute.Key("sagamill.type")
	spanKind          = attribute.Key("sagamill.kind")
	spanAttempt       = attribute.Key("sagamill.attempt")
	spanOutcome       = attribute.Key("sagamill.outcome")
	spanReason        = attribute.Key("sagamill.reason")
	spanParked        = attribute.Key("sagamill.parked")
	spanRedelivered   = attribute.Key("sagamill.redelivered")
	spanBatch         = attribute.Key("sagamill.batch")
	spanCommit        = attribute.Key("sagamill.commit_seconds")
	spanScope         = attribute.Key("sagamill.scope")
	spanKey           = attribute.Key("sagamill.key")
)

// The event that the idempotency middleware adds to the request's span, and its attributes.
const (
	decisionEvent    = "idemkey.decision"
	decisionResult   = attribute.Key("idemkey.result")
	decisionAttempt  = attribute.Key("idemkey.attempt")
	decisionOutcome  = attribute.Key("idemkey.outcome")
	decisionCode     = attribute.Key("idemkey.code")
	decisionTookOver = attribute.Key("idemkey.took_over")
	decisionOversize = attribute.Key("idemkey.oversize")
	decisionStatus   = attribute.Key("http.response.status_code")
)
