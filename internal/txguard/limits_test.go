package txguard

import (
	"math"
	"testing"
	"time"
)

func TestConnectionCheck(t *testing.T) {
	t.Parallel()
	for check, want := range map[time.Duration]string{
		-1: "0", time.Millisecond: "1", 1999 * time.Microsecond: "1", time.Second: "1000", math.MaxInt32 * time.Millisecond: "2147483647",
		0: "", time.Microsecond: "", math.MaxInt32*time.Millisecond + 1: "", math.MaxInt64: "",
	} {
		if err := ValidateConnectionCheck(check); (err != nil) != (want == "") {
			t.Errorf("ValidateConnectionCheck(%s) = %v", check, err)
		}
		if got := BindConnectionCheck("{connection_check}", check); want != "" && got != want {
			t.Errorf("BindConnectionCheck(%s) = %q, want %q", check, got, want)
		}
	}
}
