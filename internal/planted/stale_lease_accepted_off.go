//go:build !plant_stale_lease_accepted

package planted

const staleLeaseAccepted = false
