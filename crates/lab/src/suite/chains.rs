//! Chains of dependent loads that a program measures in huge and small pages of a guest, as `vmtax doctor` does: laid out, followed once, then
//! timed. Here their accesses are recorded, and simulated processors say what a load takes.

use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, dword_ptr, eax, ecx, edx, qword_ptr, rax, rbx, rcx, rdx, rsi,
};
use vmtax_guest::layout;
use vmtax_guest::order::{Backing, Paging, Probed};

use super::Suite;
use super::definition::{Definition, ExpectedExits, GuestCode, OwnMachineCode, line, nothing};
use crate::paging::InstructionPaging;
use crate::{Error, MeasuredOperation};

const NAME: &str = "chains";
/// Instructions of a chain that access memory; the last one is the load that is timed.
const OF_A_CHAIN: usize = 5;

/// A chain.
#[derive(Clone, Debug)]
pub struct Chain {
    /// In huge pages of the guest; else in small ones.
    pub huge: bool,
    /// Bytes from the start of those, in the order of the loads. Whole words of 8 bytes.
    pub places: Vec<usize>,
    /// How often it is followed when it is timed.
    pub times: usize,
}

/// A suite of one operation, which does what a program does with all of these chains, one after the other. It is kept until the process ends.
///
/// # Errors
/// When their code does not assemble.
pub fn suite(probed: Probed, chains: &[Chain]) -> Result<&'static Suite, Error> {
    let (mut words, mut body) = (Vec::new(), Vec::new());
    for chain in chains {
        let at = layout::DATA + probed.words() + 4 * words.len() as u64;
        let area = layout::DATA + if chain.huge { 0 } else { probed.small_pages() };
        let code = code(chain, area, at);
        body.extend(code.map_err(|error| Error::Payload { operation: NAME, error })?);
        let places = chain.places.iter().chain(chain.places.first());
        words.extend(places.map(|place| (place / 8) as u32));
    }
    let paging = Paging {
        bytes: u32::try_from(probed.bytes(words.len())).unwrap_or(u32::MAX),
        backing: Backing::Thp,
        large: true,
        scattered_mib: 0,
        chain: false,
        probed: Some(probed),
        program: false,
    };
    let own = OwnMachineCode { setup: Vec::new(), body, around: 0, levels: vec![1], words };
    let code = GuestCode {
        own: Some(Box::leak(Box::new(own))),
        paging: Some(paging),
        straight: false,
        ..line(nothing)
    };
    let summary = "chains of loads, each laid out, followed once, and timed";
    let definition = Definition { name: NAME, summary, count: 1, kind: ExpectedExits::None, code };
    let operations = Vec::leak(vec![definition]);
    Ok(Box::leak(Box::new(Suite { name: NAME, summary, operations, nests: false })))
}

/// Cycles of a load that is timed, by chain and processor whose cycles are simulated; `None` if the accesses are not those of so many chains.
pub fn cycles(
    measured: &MeasuredOperation,
    chains: usize,
) -> Option<Vec<Vec<(&'static str, f64)>>> {
    let instructions = &measured.paging.as_ref()?.instructions;
    let of = |chain: &[InstructionPaging]| {
        let timed = chain.last()?;
        let load = |cycles: u64| cycles as f64 / timed.accesses as f64;
        let simulated = timed.simulated.iter().filter(|(_, counts)| counts.is_timed());
        Some(simulated.map(|(name, counts)| (*name, load(counts.cycles))).collect())
    };
    (instructions.len() == OF_A_CHAIN * chains)
        .then(|| instructions.chunks(OF_A_CHAIN).map(of).collect())?
}

/// As the probe does it: indices of words, and no addresses.
fn code(chain: &Chain, area: u64, words: u64) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    let loads = chain.places.len() as u32;
    a.mov(rbx, area)?;
    a.mov(rsi, words)?;
    a.mov(ecx, loads)?;
    let mut next = a.create_label();
    a.set_label(&mut next)?;
    a.mov(eax, dword_ptr(rsi))?;
    a.mov(edx, dword_ptr(rsi + 4))?;
    a.mov(qword_ptr(rbx + rax * 8), rdx)?;
    a.add(rsi, 4)?;
    a.dec(rcx)?;
    a.jnz(next)?;
    a.mov(eax, chain.places.first().map_or(0, |place| (place / 8) as u32))?;
    for times in [1, chain.times as u32] {
        a.mov(ecx, loads * times)?;
        let mut next = a.create_label();
        a.set_label(&mut next)?;
        a.mov(rax, qword_ptr(rbx + rax * 8))?;
        a.dec(rcx)?;
        a.jnz(next)?;
    }
    a.assemble(0)
}
