//! A plugin of QEMU's TCG that records which instructions a machine executes between two port writes. Its vCPUs take turns in one thread, as
//! they do with `-icount`.
//!
//! The reader (`vmtax-lab`, `profile/tcg.rs`) interprets the instructions. Arguments, all required:
//!
//! | argument | meaning |
//! |---|---|
//! | `out=PATH` | destination of the record: a pipe, or a file to append to |
//! | `on=PORT`, `off=PORT` | marks that start and stop recording |
//! | `first=PORT`, `last=PORT` | further marks, which are recorded |
//! | `end=PORT` | a mark that ends the record |
//!
//! With `words=ADDRESS` the machine is of arm64, whose ports are words at the start of pages, port 0's at this address.
//!
//! Several vCPUs are recorded with `turns=on` alone, by which the caller promises `-icount`, and by QEMU before 9 (API 1).
//! With `ram=PATH`, the file of the machine's memory, accesses of guests to memory are recorded in place of instructions: see `memory`. With `processes=on`
//! they are those of processes of Linux guests. A program can mark parts of itself by SSC marks.
//!
//! A mark is `MOV EDX, imm32; MOV EAX, R15D; OUT DX, EAX`: a sequence that no compiler generates. On arm64 it is `MOVZ X9, imm16; MOVK X9, imm16, LSL 16;
//! STR W19, [X9]` with the address of a port, or, of a program of the machine's own, `HINT 85` in place of the store.
//!
//! # The record
//!
//! Little-endian 32-bit words. The first four are `VMTAXTCG` (two words), the version, and flags: idle time is recorded (1), the machine is of arm64 (2).
//!
//! | word | then | meaning |
//! |---|---|---|
//! | `0b0...` | | the block with this id is executed next; the previous one was executed completely |
//! | `0b100...` | | of the block before the next, only this many instructions were executed |
//! | `0b101...` | | bits 3 to 31 of an address that the last instruction of the current block accessed, or the one before it where `LAST` may come |
//! | `0b110...` | | bits 32 to 60 of the following such addresses, sign-extended |
//! | `BLOCK` | id, instructions, bytes of code, address (2), host address (2), a byte per instruction: its size; code; padding | defines a block, before its first execution |
//! | `MARK` | port | the current block writes a mark |
//! | `LAST` | | the last instruction of the current block begins. Of a block whose last instruction, not its only one, begins in the last 15 bytes of a page: if it continues in the next page, QEMU counts it to the block, and executes it in another one. Not on arm64 |
//! | `CPU` | number | the following blocks are executed by this vCPU, after the last one of another is over; also at the start |
//! | `FRAME` | bits 0 to 31 of an address | arm64: the current block stores a frame record (the registers 29 and 30) there, on its stack, or, with bit 0, loads it. Bits 32 to 60 are as above |
//! | `IDLE` | nanoseconds (2) | total time that the machine has been idle, executing no instructions |
//! | `END` | | the machine stopped, or the mark `end` was written |
//!
//! Left out on purpose: symbols, levels, stacks. Names of `qemu-plugin.h` differ by version, so all are looked up at run time; QEMU
//! 7.2 (API 1) to 11.1 (API 7) are known. The declarations are written from the API's documentation.
#![expect(unsafe_code, reason = "a plugin is called by C code and calls it")]

mod accesses;
mod api;
mod clock;
mod ram;
mod record;
mod registers;
mod special;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::File;

use accesses::Accesses;
use api::{Api, Insn, PluginId, QemuInfo};
use record::{QemuMarks, Recorder, TranslatedBlock};
use special::Change;

enum Mode {
    Code(Box<Recorder>),
    Memory(Box<Accesses>),
}

/// State shared by all callbacks. TCG calls them from the one thread that executes its vCPUs: [`install`] refuses several that do not share one.
struct PluginState(UnsafeCell<Option<Mode>>);

// SAFETY: see the type.
unsafe impl Sync for PluginState {}

static SHARED: PluginState = PluginState(UnsafeCell::new(None));

/// # Safety
/// No reference returned earlier may still be in use: each callback calls this once.
unsafe fn mode<'a>() -> Option<&'a mut Mode> {
    // SAFETY: one thread, and the caller guarantees that there is no other reference.
    unsafe { (*SHARED.0.get()).as_mut() }
}

/// # Safety
/// As for [`mode`].
unsafe fn recorder<'a>() -> Option<&'a mut Recorder> {
    // SAFETY: guaranteed by the caller.
    match unsafe { mode() } {
        Some(Mode::Code(recorder)) => Some(recorder),
        _ => None,
    }
}

extern "C" fn executed(vcpu: c_uint, block: *mut c_void) {
    // SAFETY: called once; `translated` leaked the block, and only this thread uses it.
    let (recorder, block) = unsafe { (recorder(), &mut *block.cast::<TranslatedBlock>()) };
    if let Some(recorder) = recorder {
        recorder.executed(vcpu, block);
    }
}

extern "C" fn last_begins(_vcpu: c_uint, _data: *mut c_void) {
    // SAFETY: called once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.last_begins();
    }
}

extern "C" fn accessed(_vcpu: c_uint, _info: u32, address: u64, _data: *mut c_void) {
    // SAFETY: called once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.accessed(address);
    }
}

/// A frame record is accessed; `data` is whether it is loaded.
extern "C" fn framed(_vcpu: c_uint, _info: u32, address: u64, data: *mut c_void) {
    // SAFETY: called once.
    if let Some(recorder) = unsafe { recorder() } {
        recorder.framed(address, !data.is_null());
    }
}

/// An access of a guest; `data` is the instruction's address.
extern "C" fn reached(_vcpu: c_uint, info: u32, address: u64, data: *mut c_void) {
    // SAFETY: called once, for the access that is being made.
    unsafe {
        if let Some(Mode::Memory(accesses)) = mode() {
            accesses.reached(info, address, data as usize as u64);
        }
    }
}

/// QEMU attributes its own access to the VMCB to the last instruction with a callback; instructions that can leave the guest get this one, which drops it.
extern "C" fn ignored(_vcpu: c_uint, _info: u32, _address: u64, _data: *mut c_void) {}

/// An instruction of a guest; `data` is its number.
extern "C" fn executes(_vcpu: c_uint, data: *mut c_void) {
    // SAFETY: called once.
    if let Some(Mode::Memory(accesses)) = unsafe { mode() } {
        accesses.executes(data as usize);
    }
}

/// `data` is the port, or 0 for the one that the last [`loads`] had.
extern "C" fn writes(vcpu: c_uint, data: *mut c_void) {
    // SAFETY: called once.
    match unsafe { mode() } {
        Some(Mode::Code(recorder)) => recorder.writes(vcpu, data as usize as u32),
        Some(Mode::Memory(accesses)) => accesses.writes(data as usize as u32),
        None => {}
    }
}

/// A guest is entered, or, without `data`, has been left.
extern "C" fn enters(_vcpu: c_uint, data: *mut c_void) {
    // SAFETY: called once.
    if let Some(Mode::Memory(accesses)) = unsafe { mode() } {
        if data.is_null() { accesses.leaves() } else { accesses.enters() }
    }
}

/// An instruction that changes how addresses are translated; `data` is the [`Change`].
extern "C" fn changes(_vcpu: c_uint, data: *mut c_void) {
    // SAFETY: called once; `translated_for_accesses` leaked the change.
    let (mode, change) = unsafe { (mode(), *data.cast::<Change>()) };
    if let Some(Mode::Memory(accesses)) = mode {
        accesses.changes(change);
    }
}

/// A mark of a program's own; `data` is whether it starts a part.
extern "C" fn parts(_vcpu: c_uint, data: *mut c_void) {
    // SAFETY: called once.
    if let Some(Mode::Memory(accesses)) = unsafe { mode() } {
        accesses.parts(!data.is_null());
    }
}

/// `MOV EDX, port` of a mark.
extern "C" fn loads(_vcpu: c_uint, data: *mut c_void) {
    // SAFETY: called once.
    match unsafe { mode() } {
        Some(Mode::Code(recorder)) => recorder.loaded = data as usize as u32,
        Some(Mode::Memory(accesses)) => accesses.loaded = data as usize as u32,
        None => {}
    }
}

extern "C" fn ends(_: *mut c_void, _: *mut c_void) {
    // SAFETY: called once; the vCPU has stopped.
    match unsafe { mode() } {
        Some(Mode::Code(recorder)) => recorder.end(),
        Some(Mode::Memory(accesses)) => accesses.end(),
        None => {}
    }
}

extern "C" fn translated(first: *mut c_void, second: *mut c_void) {
    let tb = api::block_of(first, second);
    // SAFETY: called once. The handles are QEMU's, valid during this callback.
    unsafe {
        let Some(recorder) = recorder() else { return };
        let api = recorder.api;
        let count = (api.tb_n_insns)(tb);
        if count == 0 {
            return;
        }
        let first = (api.tb_get_insn)(tb, 0);
        let address = [(api.insn_vaddr)(first), (api.insn_haddr)(first) as u64];
        let last = (api.insn_vaddr)((api.tb_get_insn)(tb, count - 1));
        let may_continue =
            recorder.marks.words.is_none() && count > 1 && last & IN_PAGE > IN_PAGE - 15;
        let (mut sizes, mut code) = (Vec::with_capacity(count), Vec::with_capacity(count * 5));
        for index in 0..count {
            let insn = (api.tb_get_insn)(tb, index);
            let mut room = [0; 16];
            let bytes = api.code(insn, &mut room);
            api.count(insn);
            watch(&api, &recorder.marks, insn, bytes);
            if let Some(is_load) = recorder.marks.words.and_then(|_| frame_record(bytes)) {
                let data = usize::from(is_load) as *mut c_void;
                (api.mem_cb)(insn, framed, api::NO_REGISTERS, api::READS_AND_WRITES, data);
            }
            if index + 1 == count && may_continue {
                let none = std::ptr::null_mut();
                (api.insn_exec_cb)(insn, last_begins, api::NO_REGISTERS, none);
            }
            if index + 1 == count || index + 2 == count && may_continue {
                (api.mem_cb)(
                    insn,
                    accessed,
                    api::NO_REGISTERS,
                    api::READS_AND_WRITES,
                    std::ptr::null_mut(),
                );
            }
            sizes.push(bytes.len() as u8);
            code.extend_from_slice(bytes);
        }
        let block = Box::leak(Box::new(recorder.block(address, &sizes, &code)));
        (api.tb_exec_cb)(tb, executed, api::NO_REGISTERS, std::ptr::from_mut(block).cast());
    }
}

extern "C" fn translated_for_accesses(first: *mut c_void, second: *mut c_void) {
    let tb = api::block_of(first, second);
    // SAFETY: called once. The handles are QEMU's, valid during this callback.
    unsafe {
        let Some(Mode::Memory(accesses)) = mode() else { return };
        let api = accesses.api;
        let count = (api.tb_n_insns)(tb);
        if count == 0 {
            return;
        }
        let is_of_guest = accesses.is_of_guest((api.insn_vaddr)((api.tb_get_insn)(tb, 0)));
        for index in 0..count {
            let insn = (api.tb_get_insn)(tb, index);
            let address = (api.insn_vaddr)(insn);
            let mut room = [0; 16];
            let bytes = api.code(insn, &mut room);
            watch(&api, &accesses.marks, insn, bytes);
            if let Some(enters_guest) = accesses.passage(address, bytes) {
                let data = usize::from(enters_guest) as *mut c_void;
                (api.insn_exec_cb)(insn, enters, api::NO_REGISTERS, data);
                (api.mem_cb)(insn, ignored, api::NO_REGISTERS, api::READS_AND_WRITES, data);
            }
            if is_of_guest {
                let data = address as usize as *mut c_void;
                let accessed = if only_exits(bytes) { ignored } else { reached };
                (api.mem_cb)(insn, accessed, api::NO_REGISTERS, api::READS_AND_WRITES, data);
                if let Some(starts) = own_mark(&api, insn, bytes) {
                    let data = usize::from(starts) as *mut c_void;
                    (api.insn_exec_cb)(insn, parts, api::NO_REGISTERS, data);
                    continue;
                }
                let number = accesses.translated(address) as *mut c_void;
                (api.insn_exec_cb)(insn, executes, api::NO_REGISTERS, number);
            }
            // Behind `executes`, which takes what changed before it.
            if let Some(change) = special::change(bytes, is_of_guest) {
                let data = Box::leak(Box::new(change));
                let data = std::ptr::from_mut(data).cast();
                (api.insn_exec_cb)(insn, changes, api::NO_REGISTERS, data);
            }
        }
    }
}

/// Registers a callback for an instruction that may be part of a mark.
///
/// # Safety
/// The instruction is being translated.
unsafe fn watch(api: &Api, marks: &QemuMarks, insn: *mut Insn, bytes: &[u8]) {
    if let Some(words) = marks.words {
        if bytes == STORE || bytes == HINT {
            // SAFETY: guaranteed by the caller; the bytes before it in the same page are guest memory too.
            let port = unsafe { before_in_page((api.insn_haddr)(insn).cast()) };
            let port = port.and_then(|moves| port_of(moves, words));
            if let Some(port) = port.filter(|port| marks.has(*port)) {
                let data = port as usize as *mut c_void;
                // SAFETY: guaranteed by the caller.
                unsafe { (api.insn_exec_cb)(insn, writes, api::NO_REGISTERS, data) };
            }
        }
        return;
    }
    match *bytes {
        [0xba, a, b, c, d] => {
            let port = u32::from_le_bytes([a, b, c, d]);
            if marks.has(port) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    (api.insn_exec_cb)(insn, loads, api::NO_REGISTERS, port as usize as *mut c_void)
                };
            }
        }
        [0xef] => {
            // SAFETY: guaranteed by the caller; the bytes before it in the same page are guest memory too.
            let port = unsafe { before((api.insn_haddr)(insn).cast()) };
            // At the start of a page, the port is the last one loaded.
            if let Some(port) = port.map_or(Some(0), |port| port.filter(|port| marks.has(*port))) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    (api.insn_exec_cb)(
                        insn,
                        writes,
                        api::NO_REGISTERS,
                        port as usize as *mut c_void,
                    )
                };
            }
        }
        _ => {}
    }
}

/// Whether an instruction accesses no memory, but may leave the guest, or goes on elsewhere by a helper of QEMU's.
fn only_exits(bytes: &[u8]) -> bool {
    match bytes {
        // IN, OUT, HLT, PAUSE.
        [0xe4..=0xe7, _] | [0xec..=0xef] | [0xf4] | [0xf3, 0x90] => true,
        // SYSCALL, CPUID, WRMSR, RDTSC, RDMSR, RDPMC.
        [0x0f, 0x05 | 0xa2 | 0x30..=0x33] => true,
        // XGETBV, XSETBV, VMMCALL, RDTSCP.
        [0x0f, 0x01, 0xd0 | 0xd1 | 0xd9 | 0xf9] => true,
        _ => false,
    }
}

/// Whether an instruction of a program ends an SSC mark, and whether that starts a part: `MOV EBX, 0x111` or `0x222` before it, as for Intel's SDE.
///
/// # Safety
/// The instruction is being translated.
unsafe fn own_mark(api: &Api, insn: *mut Insn, bytes: &[u8]) -> Option<bool> {
    if bytes != [0x64, 0x67, 0x90] {
        return None;
    }
    // SAFETY: guaranteed by the caller; the bytes before it in the same page are guest memory too.
    match unsafe { before_in_page((api.insn_haddr)(insn).cast()) }? {
        [.., 0xbb, 0x11, 0x01, 0, 0] => Some(true),
        [.., 0xbb, 0x22, 0x02, 0, 0] => Some(false),
        _ => None,
    }
}

/// The port of the mark whose OUT is here: `None` if the instructions before it are in another page, `Some(None)` if they are not
/// those of a mark.
///
/// # Safety
/// If not null, it points into a page of guest memory.
unsafe fn before(out: *const u8) -> Option<Option<u32>> {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { before_in_page(out) }?;
    let port = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
    let moves =
        bytes[0] == 0xba && (bytes[5..] == [0x44, 0x89, 0xf8] || bytes[5..] == [0x41, 0x8b, 0xc7]);
    Some(moves.then_some(port))
}

/// The eight bytes before an instruction, if they are in its page.
///
/// # Safety
/// If not null, it points into a page of guest memory.
unsafe fn before_in_page(instruction: *const u8) -> Option<[u8; 8]> {
    if instruction.is_null() || instruction as u64 & IN_PAGE < 8 {
        return None;
    }
    // SAFETY: the eight bytes before it are in its page.
    Some(unsafe { instruction.sub(8).cast::<[u8; 8]>().read() })
}

/// The bits of an address within its page.
const IN_PAGE: u64 = 0xfff;

/// What arm64's marks end with: `STR W19, [X9]`, `HINT 85`.
const STORE: [u8; 4] = 0xb900_0133_u32.to_le_bytes();
const HINT: [u8; 4] = 0xd503_2abf_u32.to_le_bytes();

/// The port whose address these instructions put into X9, if port 0's is `words`.
fn port_of(moves: [u8; 8], words: u64) -> Option<u32> {
    const VALUE: u32 = 0xffff << 5;
    let [low, high] = [0, 4]
        .map(|at| u32::from_le_bytes([moves[at], moves[at + 1], moves[at + 2], moves[at + 3]]));
    // MOVZ X9, low; MOVK X9, high, LSL 16.
    if (low & !VALUE, high & !VALUE) != (0xd280_0009, 0xf2a0_0009) {
        return None;
    }
    let address = u64::from((high & VALUE) >> 5 << 16 | (low & VALUE) >> 5);
    let offset = address.checked_sub(words)?;
    (offset & 0xfff == 0).then_some((offset >> 12) as u32)
}

/// Whether an instruction of arm64 stores a frame record on the stack (false) or loads it (true): STP or LDP of X29 and X30 with SP as base.
fn frame_record(bytes: &[u8]) -> Option<bool> {
    const OFFSET: u32 = 0x7f << 15;
    let word = u32::from_le_bytes(bytes.try_into().ok()?) & !OFFSET;
    match word {
        // STP, before the stack pointer moves or with an offset.
        0xa980_7bfd | 0xa900_7bfd => Some(false),
        // LDP, after which it moves or with an offset.
        0xa8c0_7bfd | 0xa940_7bfd => Some(true),
        _ => None,
    }
}

/// QEMU reads this before it calls any function: the API version of the plugin. [`loaded`] sets it to one that this QEMU supports.
#[unsafe(no_mangle)]
static mut qemu_plugin_version: c_int = 1;

/// Runs when the plugin is loaded.
extern "C" fn loaded() {
    // SAFETY: the symbol cannot have been looked up yet.
    unsafe { (&raw mut qemu_plugin_version).write(api::version()) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// Called by QEMU.
///
/// # Safety
/// The arguments are those that `qemu-plugin.h` specifies.
#[unsafe(no_mangle)]
unsafe extern "C" fn qemu_plugin_install(
    id: PluginId,
    info: *const QemuInfo,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let words = (0..usize::try_from(argc).unwrap_or(0)).map(|index| {
        // SAFETY: QEMU's strings.
        unsafe { CStr::from_ptr(*argv.add(index)) }.to_string_lossy().into_owned()
    });
    // SAFETY: QEMU's description of the machine.
    let vcpus = unsafe { (*info).vcpus };
    match install(id, vcpus, &words.collect::<Vec<_>>()) {
        Ok(()) => 0,
        Err(problem) => {
            complain(&problem);
            1
        }
    }
}

#[expect(clippy::print_stderr, reason = "QEMU's standard error is where its own messages are")]
fn complain(problem: &str) {
    eprintln!("vmtax's recorder: {problem}");
}

fn install(id: PluginId, vcpus: c_int, words: &[String]) -> Result<(), String> {
    if vcpus != 1 && !words.iter().any(|word| word == "turns=on") {
        return Err(format!("the machine has {vcpus} vCPUs, which do not take turns"));
    }
    if vcpus != 1 && api::version() > 1 {
        return Err(format!(
            "the machine has {vcpus} vCPUs, which are counted with QEMU before 9; use it, or one processor"
        ));
    }
    let value = |key: &str| {
        let found = words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        found.ok_or_else(|| format!("the argument {key}= is missing"))
    };
    let port =
        |key: &str| value(key)?.parse().map_err(|_| format!("the argument {key}= is no number"));
    let marks = QemuMarks {
        on: port("on")?,
        off: port("off")?,
        first: port("first")?,
        last: port("last")?,
        end: port("end")?,
        words: words.iter().find_map(|word| word.strip_prefix("words=")?.parse().ok()),
    };
    let path = value("out")?;
    let out = File::options().append(true).open(path).map_err(|e| format!("{path}: {e}"))?;
    let api = Api::find().map_err(|name| format!("this QEMU has no {name}"))?;
    let is_of_accesses = words.iter().any(|word| word.starts_with("ram="));
    let mode = if is_of_accesses {
        let of_processes = words.iter().any(|word| word == "processes=on");
        Mode::Memory(Box::new(Accesses::new(api, marks, out, (value("ram")?, of_processes))?))
    } else {
        Mode::Code(Box::new(Recorder::new(api, marks, out, clock::TcgClock::start())))
    };
    // SAFETY: no callback is registered yet.
    unsafe {
        *SHARED.0.get() = Some(mode);
        api.translations(id, if is_of_accesses { translated_for_accesses } else { translated });
        (api.atexit_cb)(id, ends, std::ptr::null_mut());
    }
    Ok(())
}
