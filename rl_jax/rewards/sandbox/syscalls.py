"""System calls that a program in the sandbox may use, by name, with their numbers: name:x86_64:aarch64, - for none.

An allow-list: what is not here, whatever a newer kernel brings, is refused. From linux/unistd.h. Stdlib only.
"""


def _read(text: str) -> dict[str, tuple[int | None, int | None]]:
    result = {}
    for entry in text.split():
        name, *numbers = entry.split(":")
        result[name] = tuple(None if number == "-" else int(number) for number in numbers)
    return result


# What an interpreter of one process needs: reading, memory, time, threads, its own pipes.
BASE = _read("""
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70
close:3:57 close_range:436:436 stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291
fstatfs:138:44 access:21:- faccessat:269:48 faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents:78:-
getdents64:217:61 getcwd:79:17 chdir:80:49 fchdir:81:50 lseek:8:62 poll:7:- ppoll:271:73 select:23:-
pselect6:270:72 epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22
epoll_pwait2:441:441 eventfd:284:- eventfd2:290:19 timerfd_create:283:85 timerfd_settime:286:86
timerfd_gettime:287:87 pipe:22:- pipe2:293:59 dup:32:23 dup2:33:- dup3:292:24 ftruncate:77:46
fsync:74:82 fdatasync:75:83 flock:73:32 mmap:9:222 munmap:11:215 mprotect:10:226 mremap:25:216 madvise:28:233
brk:12:214 msync:26:227 mincore:27:232 membarrier:324:283 rt_sigaction:13:134 rt_sigprocmask:14:135
rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137 rt_sigsuspend:130:133 sigaltstack:131:132
alarm:37:- setitimer:38:103 getitimer:36:102 pause:34:- restart_syscall:219:128 nanosleep:35:101
clock_nanosleep:230:115 clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169 time:201:- times:100:153
getrusage:98:165 sysinfo:99:179 uname:63:160 getpid:39:172 getppid:110:173 gettid:186:178 getuid:102:174
geteuid:107:175 getgid:104:176 getegid:108:177 getgroups:115:158 getpgrp:111:- getpgid:121:155 getsid:124:156
getresuid:118:148 getresgid:120:150 getcpu:309:168 sched_yield:24:124 sched_getaffinity:204:123
sched_getparam:143:121 sched_getscheduler:145:120 sched_get_priority_max:146:125 sched_get_priority_min:147:126
getpriority:140:141 futex:202:98 set_robust_list:273:99 get_robust_list:274:100 set_tid_address:218:96
rseq:334:293 arch_prctl:158:- exit:60:93 exit_group:231:94 wait4:61:260 waitid:247:95 getrlimit:97:163
umask:95:166 getrandom:318:278 recvfrom:45:207 sendto:44:206 recvmsg:47:212 sendmsg:46:211 shutdown:48:210
getsockopt:55:209 setsockopt:54:208 getsockname:51:204 getpeername:52:205
""")

# Changing files, for a sandbox with a disk of its own.
FILES = _read("""
mkdir:83:- mkdirat:258:34 rmdir:84:- unlink:87:- unlinkat:263:35 rename:82:- renameat:264:38 renameat2:316:276
link:86:- linkat:265:37 symlink:88:- symlinkat:266:36 chmod:90:- fchmod:91:52 fchmodat:268:53 truncate:76:45
utimensat:280:88 utime:132:- utimes:235:- fallocate:285:47 statfs:137:43 copy_file_range:326:285 sendfile:40:71
""")

# Other processes, for a sandbox that may have several.
PROCESSES = _read("""
fork:57:- vfork:58:- setpgid:109:154 setsid:112:157
""")

# Allowed for some arguments only; see seccomp.py.
LIMITED = _read("""
ioctl:16:29 prctl:157:167 prlimit64:302:261 socketpair:53:199 kill:62:129 tkill:200:130 tgkill:234:131
clone:56:220 clone3:435:435 execve:59:221 fcntl:72:25 open:2:- openat:257:56
""")
