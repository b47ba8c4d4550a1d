"""The walls around a program, each built by the process that goes behind it: name spaces and limits
(`confine`), the files it sees (`rootfs`), what it may write (`landlock`), what it may ask of the
kernel (`seccomp`, by the numbers in `syscalls`). The host imports `confine` alone."""
