"""The isolation of a program, built step by step by the process that it confines: namespaces and
limits (`confine`), visible files (`rootfs`), writable files (`landlock`), and allowed system calls
(`seccomp`, with the numbers in `syscalls`). The host imports only `confine`."""
