//! Faults that tests script for the model.

use std::time::Duration;

/// A fault of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFault {
    /// A page fault after this share (in 256ths) of the bytes.
    PageFault {
        /// Share done.
        done: u8,
        /// The fault is a write.
        write: bool,
    },
    /// It fails with this status, and nothing is done.
    Status(u8),
    /// It is done, and no record is written.
    Lost,
    /// Its record is delayed.
    Late(Duration),
    /// The engine dies before it.
    Dead,
}

/// Faults by the descriptor's number (those of batches count, batches do not), and at random.
#[derive(Clone, Debug, Default)]
pub struct FaultScript {
    at: Vec<(u64, ModelFault)>,
    random: Option<(u64, u64, Vec<ModelFault>)>,
}

impl FaultScript {
    /// A fault of the n-th descriptor, from 0.
    pub fn at(mut self, n: u64, fault: ModelFault) -> FaultScript {
        self.at.push((n, fault));
        self
    }

    /// One in `every` descriptors has one of `faults`; `seed` makes it the same every time.
    pub fn random(mut self, every: u64, seed: u64, faults: &[ModelFault]) -> FaultScript {
        self.random = Some((every, seed, faults.to_vec()));
        self
    }

    pub(super) fn fault(&self, n: u64) -> Option<ModelFault> {
        if let Some((_, fault)) = self.at.iter().find(|(at, _)| *at == n) {
            return Some(*fault);
        }
        let (every, seed, faults) = self.random.as_ref()?;
        let mut x = (n ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 29;
        x.is_multiple_of(*every).then(|| faults[(x / every) as usize % faults.len()])
    }
}
