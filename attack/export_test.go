package attack

// What the tests of the real command line share with Run.

type (
	Canary    = canary
	Listeners = listeners
)

func MakeCanaries(places ...string) []Canary        { return makeCanaries(places...) }
func ValueOf(secrets []Canary, place string) string { return valueOf(secrets, place) }
func Leaks(secrets []Canary, data []byte) []string  { return leaks(secrets, data) }
func Identity(path string) string                   { return identity(path) }
func StartListeners(dir, host, banner string) (*Listeners, error) {
	return startListeners(dir, host, banner)
}
