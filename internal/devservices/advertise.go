package devservices

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// advertisement is the file in a run's directory that [Services.Advertise] writes.
const advertisement = "services.json"

// An Advertised says where the servers of a running program are. The URLs have passwords.
type Advertised struct {
	Program     string // its name, for people
	DatabaseURL string
	AMQPURL     string
}

// Advertise lets the programs of this user find the services by [FindAdvertised], until Close or until this process
// ends. Only this user can read the URLs.
func (s *Services) Advertise(program string) error {
	dir, err := s.directory()
	if err != nil {
		return err
	}
	text, err := json.Marshal(Advertised{program, s.DatabaseURL, s.AMQPURL})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir.path, advertisement), text, 0o600)
}

// FindAdvertised returns the servers that running programs of this user advertise. A child of a program with servers
// finds nothing, because its environment has their URLs.
func FindAdvertised() (all []Advertised) {
	if os.Getenv(stepsVariable) == "env" {
		return nil
	}
	for _, parent := range []string{temporaryParent(), memory} {
		dirs, err := filepath.Glob(filepath.Join(parent, runPrefix+"*"))
		if err != nil {
			continue
		}
		for _, dir := range dirs {
			if found, ok := readAdvertisement(dir); ok {
				all = append(all, found)
			}
		}
	}
	return all
}

// readAdvertisement reads the file of a run, unless the run has ended: a living run locks its directory.
func readAdvertisement(dir string) (found Advertised, ok bool) {
	text, err := os.ReadFile(filepath.Join(dir, advertisement))
	if err != nil || !isOurDirectory(dir) {
		return found, false
	}
	if lock, err := lockDirectory(dir); err == nil {
		_ = lock.Close()
		return found, false
	}
	return found, json.Unmarshal(text, &found) == nil
}
