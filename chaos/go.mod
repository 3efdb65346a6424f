module github.com/sagamill/sagamill/chaos

go 1.26.0

replace github.com/sagamill/sagamill => ..
