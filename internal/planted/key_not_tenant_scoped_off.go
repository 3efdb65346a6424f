//go:build !plant_key_not_tenant_scoped

package planted

const keyNotTenantScoped = false
