package devservices

// BrowserProgram is the browser in which the console is tested, and the package of Debian that has it.
const BrowserProgram = "chromium"
