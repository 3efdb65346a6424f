package archtest

import (
	"fmt"
	"regexp"
	"testing"
)

// What docker-compose.yml starts is what the recorded runs used. TestDocumentsSayWhatIs compares it with the README.
func TestTheComposeFileIsWhatIsTested(t *testing.T) {
	t.Parallel()
	compose := mustReadRoot(t, "docker-compose.yml")
	records := map[string]string{}
	for _, record := range []string{"docs/chaos/cluster.txt", "docs/chaos/report.txt"} {
		records[record] = mustReadRoot(t, record)
	}
	for _, wrong := range checkRecords(compose, records) {
		t.Error(wrong)
	}
	tags := "image: postgres:18.4\nimage: rabbitmq:4.3.6-management\n"
	if got := checkRecords(tags, map[string]string{"x": "PostgreSQL 18.1 (Debian), RabbitMQ 4.3.6"}); len(got) > 0 {
		t.Errorf("the same versions: %q", got)
	}
	if got := checkRecords(tags, map[string]string{"x": "PostgreSQL 15.2, RabbitMQ 4.3.6"}); len(got) != 1 {
		t.Errorf("an older server in a record: %q, want one message", got)
	}
}

// servers are those whose versions are compared, up to the number that PostgreSQL and RabbitMQ call a release series.
var servers = []struct{ name, tag, series string }{
	{"PostgreSQL", `image: postgres:(\d+)`, `(\d+)`},
	{"RabbitMQ", `image: rabbitmq:(\d+\.\d+)`, `(\d+\.\d+)`},
}

// checkRecords returns where a record has another series than the compose file.
func checkRecords(compose string, records map[string]string) (wrong []string) {
	for _, s := range servers {
		tag := regexp.MustCompile(s.tag).FindStringSubmatch(compose)
		if tag == nil {
			wrong = append(wrong, "docker-compose.yml names no version of "+s.name)
			continue
		}
		for name, text := range records {
			if used := regexp.MustCompile(s.name + ` ` + s.series).FindStringSubmatch(text); used == nil || used[1] != tag[1] {
				wrong = append(wrong, fmt.Sprintf("%s is of %s %v, and docker-compose.yml starts %s", name, s.name, used, tag[1]))
			}
		}
	}
	return wrong
}
