package idemecho_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemecho"
)

// Authentication comes first, so that a key belongs to whom it found.
func ExampleHandler() {
	store, err := idemkey.NewMemory(nil)
	if err != nil {
		panic(err)
	}
	idem, err := idemkey.New(store, &idemkey.Options{Scope: principal, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	orders := 0
	e := echo.New()
	e.Use(middleware.Recover(), authenticate, idemecho.Handler(idem))
	e.POST("/orders", func(c echo.Context) error {
		orders++
		if orders > 1 {
			return echo.NewHTTPError(http.StatusConflict, "sold out")
		}
		return c.JSON(http.StatusCreated, echo.Map{"order": orders})
	})
	for range 2 {
		rec := post(e, "/orders")
		fmt.Printf("%d %s replayed=%t\n", rec.Code, strings.TrimSpace(rec.Body.String()), rec.Header().Get("Idempotent-Replayed") != "")
	}
	// Output:
	// 201 {"order":1} replayed=false
	// 201 {"order":1} replayed=true
}

func authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Set("principal", "acme")
		return next(c)
	}
}

func principal(r *http.Request) (string, error) {
	c, _ := idemecho.From(r.Context())
	name, _ := c.Get("principal").(string)
	return name, nil
}

// A body that is read before Handler, here to log it, is kept by Outer.
func ExampleOuter() {
	store, _ := idemkey.NewMemory(nil)
	idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true})
	if err != nil {
		panic(err)
	}
	count := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			n, _ := io.Copy(io.Discard, c.Request().Body)
			c.Logger().Infof("%d bytes", n)
			return next(c)
		}
	}
	e := echo.New()
	e.Use(idemecho.Outer(idem), count, idemecho.Handler(idem))
	e.POST("/orders", func(c echo.Context) error { return c.NoContent(http.StatusCreated) })
}

// From gives idemkey's options what earlier middleware has left in echo's context.
func ExampleFrom() {
	_ = &idemkey.Options{Scope: func(r *http.Request) (string, error) {
		c, _ := idemecho.From(r.Context())
		name, _ := c.Get("principal").(string)
		return name, nil
	}}
}
