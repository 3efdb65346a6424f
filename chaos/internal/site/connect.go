package site

import (
	"fmt"
	"net/url"
	"os"

	"github.com/sagamill/sagamill/chaos/internal/record"
	"github.com/sagamill/sagamill/internal/devservices"
	"github.com/sagamill/sagamill/internal/testing/commitloss"
)

// startTimeout is how long a process waits for its backends while it starts: longer
// than any fault lasts.
const startTimeout = "5m"

// connectBackends opens the links and configures each process with its addresses.
func (s *Site) connectBackends() error {
	ports, err := devservices.FreePorts(1 + 2*len(services) + 3*len(services))
	if err != nil {
		return err
	}
	next := func() (port int) {
		port, ports = ports[0], ports[1:]
		return port
	}
	gatewayPort := next()
	for _, service := range services {
		for _, n := range []string{"-1", "-2"} {
			s.processes[service.Name+n] = &process{site: s, name: service.Name + n, service: service.Name, port: next()}
		}
	}
	gateways := []string{loopbackAddress(s.processes["gateway-1"].port), loopbackAddress(s.processes["gateway-2"].port)}
	if s.gateway, err = openGateway(gatewayPort, gateways); err != nil {
		return fmt.Errorf("site: the gateway's proxy: %w", err)
	}
	s.closeLater(s.gateway.closeGateway)
	api := proxyServer()
	for _, service := range services {
		first, second := s.processes[service.Name+"-1"], s.processes[service.Name+"-2"]
		database, broker := next(), next()
		for name, to := range map[string]struct {
			port     int
			upstream string
		}{
			linkName(service.Name, Postgres): {database, loopbackAddress(s.postgres.server.port)},
			linkName(service.Name, RabbitMQ): {broker, s.broker.node.Addr()},
		} {
			if s.links[name], err = openLink(api, name, to.port, to.upstream); err != nil {
				return err
			}
			s.closeLater(func() error { s.links[name].CutConnections(); return nil })
		}
		loss, err := commitloss.Listen(loopbackAddress(next()), loopbackAddress(s.postgres.server.port))
		if err != nil {
			return fmt.Errorf("site: %w", err)
		}
		s.losses[second.name] = loss
		s.closeLater(loss.Close)
		s.configureProcess(service, first, loopbackAddress(database), loopbackAddress(broker), gatewayPort)
		s.configureProcess(service, second, loss.Addr(), s.broker.node.Addr(), gatewayPort)
	}
	return nil
}

// configureProcess sets the program, arguments and environment of a process.
func (s *Site) configureProcess(service Service, p *process, database, broker string, gateway int) {
	p.program = s.opts.Programs.Order
	p.args = []string{"serve", "-services", service.Name, "-listen", loopbackAddress(p.port), "-namespace", s.Namespace(service.Saga), "-start-timeout", startTimeout, "-keep", s.opts.Keep.String()}
	switch {
	case service.Saga == record.Trip:
		p.program = s.opts.Programs.Trip
		p.args = append(p.args, "-patience", s.opts.Patience.String())
	case service.Name == "payment":
		p.args = append(p.args, "-gateway-url", "http://"+loopbackAddress(gateway))
	}
	p.env = environment(map[string]string{
		"DATABASE_URL":           fmt.Sprintf("postgres://postgres:%s@%s/%s?sslmode=disable&application_name=%s&pool_max_conns=%d", record.DatabasePassword, database, databaseName, url.QueryEscape(applicationName(service.Name)), connectionLimit(service)),
		"AMQP_URL":               fmt.Sprintf("amqp://%s:%s@%s/", brokerUser, record.BrokerPassword, broker),
		"GOMAXPROCS":             "1",
		"GOGC":                   "400", // many processes with short lives: trade memory for processor time
		"SAGAMILL_FAILPOINT_LOG": s.pathInSite(record.FailpointsFile),
	})
}

// connectionLimit is a process's number of connections to PostgreSQL. It is small because each start of a
// process opens and prepares all of them anew.
func connectionLimit(s Service) int {
	switch s.Name {
	case "order", "payment", "gateway", "trip":
		return 6
	default:
		return 3
	}
}

// environment returns a process's whole environment: set, and a few variables of this process.
func environment(set map[string]string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return env
}
