//go:build plant_response_re_rendered

package planted

const responseReRendered = true
