module glovebox

go 1.26.3

require (
	github.com/aws/aws-sdk-go-v2 v1.48.0 // credentials and signatures of AWS
	github.com/aws/aws-sdk-go-v2/service/sts v1.52.0 // credentials of a role, bounded by a policy
	github.com/elastic/go-seccomp-bpf v1.6.0 // tables of system calls and a labelled assembler for the filter
	github.com/goccy/go-yaml v1.19.2 // the configuration file, strictly, with lines and columns in errors
	github.com/godbus/dbus/v5 v5.2.4 // asks systemd for a user's own control group
	github.com/golang-jwt/jwt/v5 v5.3.1 // signed tokens: a GitHub App's proof, and Glovebox's own
	github.com/google/go-cmp v0.7.0 // differences in tests
	github.com/google/go-containerregistry v0.22.1 // images of registries and OCI layouts
	github.com/google/jsonschema-go v0.4.3 // arguments of actions held to their schema
	github.com/klauspost/compress v1.20.4 // zstd, in which archives of images come
	github.com/landlock-lsm/go-landlock v0.11.2 // the Landlock calls, which x/sys lacks
	github.com/moby/sys/mountinfo v0.7.2 // the mount table, to find control groups
	github.com/rogpeppe/go-internal v1.16.0 // command line scripts as tests
	github.com/spf13/cobra v1.10.2 // the command line: verbs, help, completion
	github.com/spf13/pflag v1.0.10 // cobra's flags, for their errors' types
	github.com/xuri/excelize/v2 v2.11.1 // the example's workbook
	golang.org/x/mod v0.43.0 // the Merkle tree of the trace, and signed notes
	golang.org/x/net v0.62.0 // BPF and a machine to test it on, DNS messages, names of other scripts, the Public Suffix List
	golang.org/x/oauth2 v0.38.0 // tokens by client credentials, refresh and exchange
	golang.org/x/sys v0.50.0 // Linux calls that the standard library lacks
	gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237 // a sandbox's TCP/IP stack, and runsc (see tool)
	modernc.org/sqlite v1.62.0 // the database of the trace, without cgo
	software.sslmate.com/src/go-pkcs12 v0.7.4 // truststores as Java has them
)

require (
	github.com/aws/aws-sdk-go-v2/internal/configsources v1.5.12 // indirect
	github.com/aws/aws-sdk-go-v2/internal/endpoints/v2 v2.8.12 // indirect
	github.com/aws/aws-sdk-go-v2/internal/v4a v1.5.12 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/accept-encoding v1.13.25 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/presigned-url v1.14.12 // indirect
	github.com/aws/smithy-go v1.28.9 // indirect
	github.com/cenkalti/backoff v2.2.1+incompatible // indirect
	github.com/cilium/ebpf v0.16.0 // indirect
	github.com/coreos/go-systemd/v22 v22.6.0 // indirect
	github.com/creack/pty v1.1.24 // indirect
	github.com/docker/cli v29.7.2+incompatible // indirect
	github.com/docker/docker-credential-helpers v0.9.3 // indirect
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/gofrs/flock v0.8.0 // indirect
	github.com/google/btree v1.1.2 // indirect
	github.com/google/subcommands v1.0.2-0.20190508160503-636abe8753b8 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/moby/sys/capability v0.4.0 // indirect
	github.com/mohae/deepcopy v0.0.0-20170308212314-bb9b5e7adda9 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	github.com/opencontainers/runtime-spec v1.2.1 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	github.com/richardlehane/mscfb v1.0.9 // indirect
	github.com/richardlehane/msoleps v1.0.6 // indirect
	github.com/sirupsen/logrus v1.9.4 // indirect
	github.com/tiendc/go-deepcopy v1.7.2 // indirect
	github.com/vishvananda/netlink v1.3.1-0.20250303224720-0e7078ed04c8 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	github.com/xuri/efp v0.0.3-0.20260924042702-217b81952dec // indirect
	github.com/xuri/nfp v0.0.2-0.20250530014748-2ddeb826f9a9 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/exp v0.0.0-20250711185948-6ae5c78190dc // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/time v0.15.0 // indirect
	golang.org/x/tools v0.52.0 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
	gotest.tools/v3 v3.5.2 // indirect
	kernel.org/pub/linux/libs/security/libcap/psx v1.2.78 // indirect
	modernc.org/libc v1.80.1 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
)

tool gvisor.dev/gvisor/runsc // the kernel in user space of the gvisor rung: a program, which nothing imports
