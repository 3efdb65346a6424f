package idemgin_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/sagamill/sagamill/idemkey"
	"github.com/sagamill/sagamill/idemkey/idemgin"
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
	router := gin.New()
	router.Use(gin.Recovery(), authenticate, idemgin.Handler(idem))
	router.POST("/orders", func(c *gin.Context) {
		orders++
		c.JSON(http.StatusCreated, gin.H{"order": orders})
	})
	for range 2 {
		rec := post(router, "/orders")
		fmt.Printf("%d %s replayed=%t\n", rec.Code, rec.Body, rec.Header().Get("Idempotent-Replayed") != "")
	}
	// Output:
	// 201 {"order":1} replayed=false
	// 201 {"order":1} replayed=true
}

func authenticate(c *gin.Context) { c.Set("principal", "acme") }

func principal(r *http.Request) (string, error) {
	c, _ := idemgin.From(r.Context())
	return c.GetString("principal"), nil
}

// A body that is read before Handler, here to check a signature, is kept by Outer.
func ExampleOuter() {
	store, _ := idemkey.NewMemory(nil)
	idem, err := idemkey.New(store, &idemkey.Options{SingleTenant: true})
	if err != nil {
		panic(err)
	}
	checkSignature := func(c *gin.Context) {
		if body, err := io.ReadAll(c.Request.Body); err != nil || !signed(c.Request.Header, body) {
			c.AbortWithStatus(http.StatusForbidden)
		}
	}
	router := gin.New()
	router.POST("/orders", idemgin.Outer(idem), checkSignature, idemgin.Handler(idem), func(c *gin.Context) {
		c.Status(http.StatusCreated)
	})
}

func signed(http.Header, []byte) bool { return true }

// From gives idemkey's options what earlier middleware has left in gin's context.
func ExampleFrom() {
	_ = &idemkey.Options{Scope: func(r *http.Request) (string, error) {
		c, _ := idemgin.From(r.Context())
		return c.GetString("principal"), nil
	}}
}
