// Package api is the common part of the HTTP interfaces of order-saga's services.
package api

import "github.com/sagamill/sagamill/examples/internal/web"

// Program writes the problems of all services.
const Program web.Program = "order-saga"
