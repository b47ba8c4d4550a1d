"""System call numbers, as `name:x86_64:aarch64` (-1: not on this architecture), from the kernel's
unistd headers."""

from __future__ import annotations

ALLOWED = """
prctl:157:167 read:0:63 write:1:64 close:3:57 fstat:5:80 lseek:8:62 mmap:9:222 mprotect:10:226
munmap:11:215 brk:12:214 rt_sigprocmask:14:135 rt_sigreturn:15:139 pread64:17:67
pwrite64:18:68 readv:19:65 writev:20:66 access:21:-1 pipe:22:-1 select:23:-1 sched_yield:24:124
mremap:25:216 msync:26:227 mincore:27:232 madvise:28:233 dup:32:23 dup2:33:-1 pause:34:-1
nanosleep:35:101 getitimer:36:102 alarm:37:-1 setitimer:38:103 getpid:39:172 sendfile:40:71
sendto:44:206 recvfrom:45:207 sendmsg:46:211 recvmsg:47:212 shutdown:48:210 getsockname:51:204
getpeername:52:205 setsockopt:54:208 getsockopt:55:209 fork:57:-1 vfork:58:-1 exit:60:93
wait4:61:260 uname:63:160 fsync:74:82 fdatasync:75:83 truncate:76:45 ftruncate:77:46 getdents:78:-1
getdents64:217:61 getcwd:79:17 chdir:80:49 fchdir:81:50 rename:82:-1 mkdir:83:-1 rmdir:84:-1
creat:85:-1 link:86:-1 unlink:87:-1 symlink:88:-1 readlink:89:-1 chmod:90:-1 fchmod:91:52
chown:92:-1 fchown:93:55 lchown:94:-1 umask:95:166 gettimeofday:96:169 getrlimit:97:163
getrusage:98:165 times:100:153 getuid:102:174 getgid:104:176 geteuid:107:175 getegid:108:177
setpgid:109:154 getppid:110:173 getpgrp:111:-1 getpgid:121:155 getsid:124:156 getgroups:115:158
getresuid:118:148 getresgid:120:150 rt_sigpending:127:136 rt_sigtimedwait:128:137
rt_sigsuspend:130:133 sigaltstack:131:132 utime:132:-1 statfs:137:43 fstatfs:138:44
getpriority:140:141 sched_getparam:143:121 sched_getscheduler:145:120 sched_get_priority_max:146:125
sched_get_priority_min:147:126 sched_rr_get_interval:148:127 arch_prctl:158:-1 setrlimit:160:164
gettid:186:178 time:201:-1 futex:202:98 sched_getaffinity:204:123 epoll_create:213:-1
epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:-1 epoll_pwait:281:22 epoll_pwait2:441:441
set_tid_address:218:96 restart_syscall:219:128 timer_create:222:107 timer_settime:223:110
timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111 clock_gettime:228:113
clock_getres:229:114 clock_nanosleep:230:115 exit_group:231:94 utimes:235:-1 waitid:247:95 stat:4:-1
lstat:6:-1 poll:7:-1 mkdirat:258:34 newfstatat:262:79 unlinkat:263:35 renameat:264:38 linkat:265:37
symlinkat:266:36 readlinkat:267:78 fchmodat:268:53 fchownat:260:54 faccessat:269:48 pselect6:270:72
ppoll:271:73 set_robust_list:273:99 get_robust_list:274:100 utimensat:280:88 futimesat:261:-1
eventfd:284:-1 eventfd2:290:19 fallocate:285:47 timerfd_create:283:85 timerfd_settime:286:86
timerfd_gettime:287:87 dup3:292:24 pipe2:293:59 preadv:295:69 pwritev:296:70 getcpu:309:168
getrandom:318:278 renameat2:316:276 copy_file_range:326:285 pwritev2:328:287 rseq:334:293
faccessat2:439:439 close_range:436:436 membarrier:324:283 signalfd4:289:74 pidfd_open:434:434
pidfd_send_signal:424:424 kill:62:129 tkill:200:130 tgkill:234:131 rt_sigqueueinfo:129:138
rt_tgsigqueueinfo:297:240 splice:275:76 tee:276:77 futex_waitv:449:449 mseal:462:462 seccomp:317:277
sched_getattr:315:275 munlock:150:229 munlockall:152:231 capset:126:91
landlock_restrict_self:446:446
"""
"""The calls of an ordinary single-user program. The last line has calls that give up privileges,
which tests need after the filter is installed."""

# Compilers, shells and runtimes need these in a box. Each command has a process namespace, a user
# namespace and a file system of its own, which end with it.
BOX_ALLOWED = """
execve:59:221 execveat:322:281 statx:332:291 sysinfo:99:179 setsid:112:157
rt_sigaction:13:134 open:2:-1 openat:257:56 preadv2:327:286 fadvise64:221:223
"""

REFUSED = """
socket:41:198 connect:42:203 accept:43:202 accept4:288:242 bind:49:200 listen:50:201 execve:59:221
execveat:322:281 ptrace:101:117 mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51
unshare:272:97 setns:308:268 bpf:321:280 perf_event_open:298:241 keyctl:250:219 add_key:248:217
request_key:249:218 kexec_load:246:104 kexec_file_load:320:294 init_module:175:105
finit_module:313:273 delete_module:176:106 process_vm_readv:310:270 process_vm_writev:311:271
process_madvise:440:440 userfaultfd:323:282 io_uring_setup:425:425 io_uring_enter:426:426
io_uring_register:427:427 open_by_handle_at:304:-1 name_to_handle_at:303:-1 memfd_create:319:279
memfd_secret:447:447 personality:135:92 settimeofday:164:170 clock_settime:227:112
clock_adjtime:305:266 adjtimex:159:171 reboot:169:142 swapon:167:224 swapoff:168:225 quotactl:179:60
acct:163:89 setpriority:141:140 sched_setaffinity:203:122 sched_setscheduler:144:119
sched_setparam:142:118 sched_setattr:314:274 ioprio_set:251:30 pidfd_getfd:438:438 kcmp:312:272
msgget:68:186 msgsnd:69:189 msgrcv:70:188 msgctl:71:187 semget:64:190 semop:65:193
semtimedop:220:192 semctl:66:191 shmget:29:194 shmat:30:196 shmdt:67:197 shmctl:31:195
mq_open:240:180 mq_unlink:241:181 mq_timedsend:242:182 mq_timedreceive:243:183 mq_notify:244:184
mq_getsetattr:245:185 fsopen:430:430 fsmount:432:432 fsconfig:431:431 fspick:433:433
move_mount:429:429 open_tree:428:428 mount_setattr:442:442 landlock_create_ruleset:444:444
landlock_add_rule:445:445 syslog:103:116 iopl:172:-1 ioperm:173:-1 sync:162:81 syncfs:306:267
setuid:105:146 setgid:106:144 setreuid:113:145 setregid:114:143 setresuid:117:147 setresgid:119:149
setgroups:116:159 setfsuid:122:151 setfsgid:123:152 sethostname:170:161 setdomainname:171:162
vhangup:153:58 mbind:237:235 set_mempolicy:238:237 migrate_pages:256:238 move_pages:279:239
fanotify_init:300:262 fanotify_mark:301:263 inotify_init:253:-1 inotify_init1:294:26
inotify_add_watch:254:27 vmsplice:278:75 mlock:149:228 mlock2:325:284 mlockall:151:230 mknod:133:-1
mknodat:259:33 sysinfo:99:179 fadvise64:221:223
"""
"""Answered with EPERM, an ordinary refusal for a program; unlisted calls are answered with ENOSYS.

Unlisted on purpose: openat2 (a filter cannot inspect its flags), and statx (it reveals when a file
system was made, and so when a submission began)."""

UNSUPPORTED = """
setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7 getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10
listxattr:194:11 llistxattr:195:12 flistxattr:196:13 removexattr:197:14 lremovexattr:198:15
fremovexattr:199:16
"""
"""Answered like a file system without extended attributes, as shutil.copy2 expects."""

CONDITIONAL = """
ioctl:16:29 fcntl:72:25 flock:73:32 open:2:-1 openat:257:56 setsid:112:157 preadv2:327:286
rt_sigaction:13:134 clone:56:220 clone3:435:435 prctl:157:167 prlimit64:302:261 socketpair:53:199
"""
"""Decided by their arguments."""


def numbers(table: str, machine: str) -> dict[str, int]:
    """Return the numbers of `table` on `machine` (x86_64 or aarch64). Raises KeyError for other
    machines."""
    column = {"x86_64": 1, "aarch64": 2}[machine]
    rows = (row.split(":") for row in table.split())
    return {row[0]: int(row[column]) for row in rows if int(row[column]) >= 0}
