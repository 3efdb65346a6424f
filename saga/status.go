package saga

import (
	"github.com/sagamill/sagamill/internal/sagarow"
)

// Status is where an instance is, for those who look for instances.
type Status string

// The statuses. The last two are final.
const (
	StatusRunning      Status = Status(sagarow.Running)
	StatusCompensating Status = Status(sagarow.Compensating)
	StatusPaused       Status = Status(sagarow.Paused) // by a person, until a person resumes it
	StatusStuck        Status = Status(sagarow.Stuck)  // a person must act
	StatusCompleted    Status = Status(sagarow.Completed)
	StatusCompensated  Status = Status(sagarow.Compensated)
)

// ErrNoInstance reports that there is no instance of that scope and key.
var ErrNoInstance = sagarow.ErrNoInstance
