"""The isolation of a program, each part built by the process that it confines: namespaces and
limits (`confine`), visible files (`rootfs`), writable files (`landlock`), allowed system calls
(`seccomp`, by the numbers in `syscalls`). The host imports `confine` alone."""
