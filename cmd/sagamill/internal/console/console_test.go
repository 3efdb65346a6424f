package console

import "testing"

func TestOnlyThisMachineReachesTheConsole(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{"127.0.0.1:0": true, "localhost:1": true, "[::1]:1": true, ":1": false, "0.0.0.0:1": false, "10.0.0.1:1": false, "example.com:1": false, "127.0.0.1": false} {
		if err := checkListen(address, false); (err == nil) != want {
			t.Errorf("-listen %s = %v", address, err)
		}
	}
	if err := checkListen("0.0.0.0:1", true); err != nil {
		t.Errorf("with -allow-plaintext: %v", err)
	}
}
