//! A library between a scenario's node and libc that makes the wall clock jump and disk flushes slow. The loader
//! inserts it (`LD_PRELOAD`), so that the node needs no code for it.
//!
//! ```text
//!  scenario ── pwrite ─▶ a file of three words ◀── mapped, shared ── this library ── clock_gettime, fsync, … ──▶ kernel
//! ```
//!
//! Invariants:
//! * An interposed call allocates and locks nothing: it reads one word of the file.
//! * Calls before the library's initialisation, and all calls without the variable, behave like libc's.
//! * Monotonic clocks are unchanged, as when an operator or NTP sets the time.
//! * A process that requests the library without a valid file exits at once; otherwise it would run without its fault.
//!
//! Reads and writes are unchanged: most of them end in the page cache, even with a slow disk.

mod layout;

use std::{
    ffi::{CStr, c_int, c_uint, c_void},
    io::{Error, ErrorKind},
    mem, ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};

use libc::{clockid_t, off64_t, time_t, timespec, timeval};

/// The exit code of a process without a valid file.
const EXIT_CODE: c_int = 97;
const NANOS_PER_SECOND: i64 = 1_000_000_000;

type ClockGettime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;

/// The words; null while the library does nothing.
static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// libc's `clock_gettime`, which does not enter the kernel; null until it is looked up.
static CLOCK_GETTIME: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

// SAFETY: the loader calls each function in this section once, before the program begins. This library links with libc,
// so libc is initialised by then.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Looks up the function and maps the file, while the process has a single thread.
extern "C" fn begin() {
    // SAFETY: the name ends with a NUL, and this library is loaded, so `RTLD_NEXT` is valid.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"clock_gettime".as_ptr()) };
    CLOCK_GETTIME.store(next, Ordering::Release);
    // SAFETY: the name ends with a NUL; no other thread changes the environment yet.
    let path = unsafe { libc::getenv(layout::VARIABLE.as_ptr()) };
    if path.is_null() {
        return;
    }
    // SAFETY: `getenv` returned a text that ends with a NUL.
    let file = unsafe { libc::open(path, libc::O_RDWR | libc::O_CLOEXEC) };
    let bytes = layout::WORDS * layout::WORD_BYTES;
    // SAFETY: seeking only changes the file's position; it fails if the file could not be opened.
    let length = unsafe { libc::lseek(file, 0, libc::SEEK_END) };
    if usize::try_from(length).is_ok_and(|length| length >= bytes) {
        let (protection, none) = (libc::PROT_READ | libc::PROT_WRITE, ptr::null_mut());
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let words = unsafe { libc::mmap(none, bytes, protection, libc::MAP_SHARED, file, 0) };
        if words != libc::MAP_FAILED {
            WORDS.store(words.cast(), Ordering::Release);
        }
    }
    // SAFETY: the mapping outlives the open file, and only this function has its descriptor; closing fails if the file
    // could not be opened.
    unsafe { libc::close(file) };
    match word(layout::LOADED) {
        Some(loaded) => loaded.store(1, Ordering::Relaxed),
        None => refuse(c"slipnet_preload: the file that SLIPNET_PRELOAD names cannot be mapped\n"),
    }
}

/// Prints this text to standard error and ends the process.
fn refuse(text: &CStr) {
    // SAFETY: the length is the text's own; the process has nothing to save yet.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.count_bytes());
        libc::_exit(EXIT_CODE)
    }
}

/// Returns a word of the file; `None` while the library does nothing.
fn word(index: usize) -> Option<&'static AtomicU64> {
    let words = WORDS.load(Ordering::Acquire);
    if words.is_null() || index >= layout::WORDS {
        return None;
    }
    // SAFETY: `begin` mapped `WORDS` words, page-aligned, for the life of the process. All access here is atomic, and
    // the file's writer writes whole words.
    Some(unsafe { &*words.add(index) })
}

fn value(index: usize) -> u64 {
    word(index).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// Waits for the extra time of a flush to a slow disk.
fn wait_for_disk() {
    let micros = value(layout::FLUSH);
    if micros == 0 {
        return;
    }
    let mut left =
        timespec { tv_sec: (micros / 1_000_000) as time_t, tv_nsec: (micros % 1_000_000 * 1_000) as _ };
    let left = &raw mut left;
    // SAFETY: the time is a local variable, and `nanosleep` accepts the same place for input and output.
    while unsafe { libc::nanosleep(left, left) } != 0
        && Error::last_os_error().kind() == ErrorKind::Interrupted
    {}
}

/// Returns libc's time.
///
/// # Safety
/// As for the C function.
unsafe fn true_time(clock: clockid_t, time: *mut timespec) -> c_int {
    let next = CLOCK_GETTIME.load(Ordering::Acquire);
    if next.is_null() {
        // SAFETY: the system call gets the function's own arguments; the caller guarantees their validity.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as c_int;
    }
    // SAFETY: this is the address of libc's function of that name, which has this type.
    let next = unsafe { mem::transmute::<*mut c_void, ClockGettime>(next) };
    // SAFETY: the caller guarantees the validity of the arguments.
    unsafe { next(clock, time) }
}

fn is_wall_clock(clock: clockid_t) -> bool {
    [libc::CLOCK_REALTIME, libc::CLOCK_REALTIME_COARSE, libc::CLOCK_TAI].contains(&clock)
}

/// Returns a time `by_ms` milliseconds later, or earlier if that is negative.
fn shifted(time: timespec, by_ms: i64) -> timespec {
    let nanos = time.tv_nsec + by_ms.rem_euclid(1_000) * 1_000_000;
    let seconds = by_ms.div_euclid(1_000) + nanos.div_euclid(NANOS_PER_SECOND);
    timespec { tv_sec: time.tv_sec.saturating_add(seconds), tv_nsec: nanos.rem_euclid(NANOS_PER_SECOND) }
}

/// Returns this process' wall-clock time.
fn now() -> timespec {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is a local variable.
    unsafe { clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    time
}

/// libc's `clock_gettime`, with the jump.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the caller guarantees the validity of the arguments.
    let result = unsafe { true_time(clock, time) };
    let by_ms = value(layout::CLOCK) as i64;
    if result == 0 && by_ms != 0 && is_wall_clock(clock) {
        // SAFETY: the call above succeeded, so it has written the time there.
        unsafe { time.write(shifted(time.read(), by_ms)) };
    }
    result
}

/// libc's `gettimeofday`, with the jump.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut timeval, zone: *mut c_void) -> c_int {
    let timespec { tv_sec, tv_nsec } = now();
    if !time.is_null() {
        // SAFETY: the caller passes a place for the time, or null.
        unsafe { time.write(timeval { tv_sec, tv_usec: tv_nsec / 1_000 }) };
    }
    if !zone.is_null() {
        // SAFETY: the caller passes a place for a time zone, which is two numbers, or null.
        unsafe { zone.cast::<[c_int; 2]>().write([0; 2]) };
    }
    0
}

/// libc's `time`, with the jump.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(seconds: *mut time_t) -> time_t {
    let now = now().tv_sec;
    if !seconds.is_null() {
        // SAFETY: the caller passes a place for the time, or null.
        unsafe { seconds.write(now) };
    }
    now
}

/// libc's `fsync`, after the delay that the file sets.
#[unsafe(no_mangle)]
pub extern "C" fn fsync(file: c_int) -> c_int {
    wait_for_disk();
    // SAFETY: the kernel refuses invalid descriptors.
    unsafe { libc::syscall(libc::SYS_fsync, file) as c_int }
}

/// libc's `fdatasync`, after the delay that the file sets.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(file: c_int) -> c_int {
    wait_for_disk();
    // SAFETY: the kernel refuses invalid descriptors.
    unsafe { libc::syscall(libc::SYS_fdatasync, file) as c_int }
}

/// libc's `syncfs`, after the delay that the file sets.
#[unsafe(no_mangle)]
pub extern "C" fn syncfs(file: c_int) -> c_int {
    wait_for_disk();
    // SAFETY: the kernel refuses invalid descriptors.
    unsafe { libc::syscall(libc::SYS_syncfs, file) as c_int }
}

/// libc's `sync_file_range`, after the delay that the file sets.
#[unsafe(no_mangle)]
pub extern "C" fn sync_file_range(file: c_int, offset: off64_t, bytes: off64_t, flags: c_uint) -> c_int {
    wait_for_disk();
    // SAFETY: the kernel refuses invalid descriptors, ranges and flags.
    unsafe { libc::syscall(libc::SYS_sync_file_range, file, offset, bytes, flags) as c_int }
}
