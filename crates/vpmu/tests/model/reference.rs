//! A PMU as the manuals describe it, for comparison: it adds up unit by unit, and knows neither hosts nor policies.

use vmtax_vpmu::host::virtual_time::GuestWork;
use vmtax_vpmu::{GeneralProtection, PmuEvent, PmuModel};

type ModelAnswer<T> = Result<T, GeneralProtection>;
const FAULT: GeneralProtection = GeneralProtection;

/// Registers of either vendor. Fixed counters are numbers 32 and up.
pub(crate) struct Reference {
    model: PmuModel,
    value: [u64; 36],
    select: [u64; 8],
    fixed_control: u64,
    control: u64,
    status: u64,
    debug: u64,
    pub(crate) pending: bool,
    /// All that counters went up.
    pub(crate) counted: u64,
    pub(crate) overflows: u64,
}

impl Reference {
    pub(crate) fn new(model: PmuModel) -> Reference {
        let control = match &model {
            PmuModel::Intel(m) if m.version > 1 => (1 << m.general) - 1,
            PmuModel::Amd(m) if m.perfmon_v2 => (1 << m.counters) - 1,
            _ => 0,
        };
        Reference {
            model,
            value: [0; 36],
            select: [0; 8],
            fixed_control: 0,
            control,
            status: 0,
            debug: 0,
            pending: false,
            counted: 0,
            overflows: 0,
        }
    }

    pub(crate) fn reset(&mut self) {
        let (counted, overflows) = (self.counted, self.overflows);
        *self = Reference::new(self.model.clone());
        (self.counted, self.overflows) = (counted, overflows);
    }

    pub(crate) fn frozen(&self) -> bool {
        self.status >> 59 & 1 == 1
    }

    fn there(&self, counter: usize) -> bool {
        match &self.model {
            PmuModel::Intel(m) if counter < 32 => counter < m.general.into(),
            PmuModel::Intel(m) => m.fixed >> (counter - 32) & 1 == 1,
            PmuModel::Amd(m) => counter < m.counters.into(),
        }
    }

    fn width(&self, counter: usize) -> u32 {
        match &self.model {
            PmuModel::Intel(m) if counter < 32 => m.general_width.into(),
            PmuModel::Intel(m) => m.fixed_width.into(),
            PmuModel::Amd(_) => 48,
        }
    }

    fn mask(&self) -> u64 {
        (0..36).filter(|c| self.there(*c)).map(|c| 1 << c).sum()
    }

    fn version(&self) -> u8 {
        match &self.model {
            PmuModel::Intel(m) => m.version,
            // PerfMonV2 has what Intel's version 4 has.
            PmuModel::Amd(m) => {
                if m.perfmon_v2 {
                    4
                } else {
                    1
                }
            }
        }
    }

    /// How often what a general counter counts happens in a unit of work.
    fn happens(&self, counter: usize, work: &GuestWork) -> u64 {
        let event = if counter >= 32 {
            let bits = self.fixed_control >> (4 * (counter - 32));
            if bits & if work.user { 2 } else { 1 } == 0 {
                return 0;
            }
            match counter {
                32 => PmuEvent::Instructions,
                33 => PmuEvent::Cycles,
                34 => PmuEvent::ReferenceCycles,
                _ => PmuEvent::Slots,
            }
        } else {
            let select = self.select[counter];
            let mode = if work.user { 1 << 16 } else { 1 << 17 };
            if select & 1 << 22 == 0 || select & mode == 0 {
                return 0;
            }
            let plain = select >> 23 & 0x1ff == 0 && select >> 18 & 1 == 0 && select >> 32 == 0;
            let (bit, event) = match (&self.model, select & 0xffff) {
                (PmuModel::Intel(_), 0x003c) => (0, PmuEvent::Cycles),
                (PmuModel::Intel(_), 0x00c0) => (1, PmuEvent::Instructions),
                (PmuModel::Intel(_), 0x013c) => (2, PmuEvent::ReferenceCycles),
                (PmuModel::Intel(_), 0x4f2e) => (3, PmuEvent::CacheReferences),
                (PmuModel::Intel(_), 0x412e) => (4, PmuEvent::CacheMisses),
                (PmuModel::Intel(_), 0x00c4) => (5, PmuEvent::Branches),
                (PmuModel::Intel(_), 0x00c5) => (6, PmuEvent::BranchMisses),
                (PmuModel::Intel(_), 0x01a4) => (7, PmuEvent::Slots),
                (PmuModel::Amd(_), 0x76) => (8, PmuEvent::Cycles),
                (PmuModel::Amd(_), 0xc0) => (8, PmuEvent::Instructions),
                (PmuModel::Amd(_), 0xc2) => (8, PmuEvent::Branches),
                (PmuModel::Amd(_), 0xc3) => (8, PmuEvent::BranchMisses),
                (_, code) => (8, PmuEvent::Raw(code)),
            };
            match &self.model {
                PmuModel::Intel(m) if plain && bit < 8 && m.unavailable >> bit & 1 == 1 => {
                    return 0;
                }
                _ if plain => event,
                // With a threshold or a similar modifier it is another event of the processor.
                _ => {
                    let ignored = 1 << 16 | 1 << 17 | 1 << 19 | 1 << 20 | 1 << 21 | 1 << 22;
                    PmuEvent::Raw(select & !ignored)
                }
            }
        };
        work.events.iter().filter(|(e, _)| *e == event).map(|(_, n)| n).sum()
    }

    /// One unit of the guest's work.
    pub(crate) fn run(&mut self, work: &GuestWork) {
        let mut interrupts = false;
        let frozen = self.version() >= 4 && self.status >> 59 & 1 == 1;
        for counter in 0..36 {
            let on = self.version() < 2 || self.control >> counter & 1 == 1;
            if !self.there(counter) || !on || frozen {
                continue;
            }
            let n = self.happens(counter, work);
            self.counted += n;
            self.value[counter] += n;
            if self.value[counter] >> self.width(counter) == 0 {
                continue;
            }
            self.value[counter] &= (1 << self.width(counter)) - 1;
            self.overflows += 1;
            if self.version() >= 2 {
                self.status |= 1 << counter;
            }
            interrupts |= if counter < 32 {
                self.select[counter] >> 20 & 1 == 1
            } else {
                self.fixed_control >> (4 * (counter - 32) + 3) & 1 == 1
            };
        }
        self.pending |= interrupts;
        if interrupts && self.debug != 0 {
            match self.version() {
                4.. => self.status |= 1 << 59,
                _ => self.control = 0,
            }
        }
    }

    pub(crate) fn rdpmc(
        &self,
        index: u32,
        cpl: u8,
        pce: bool,
        protected: bool,
    ) -> ModelAnswer<u64> {
        if protected && cpl != 0 && !pce {
            return Err(FAULT);
        }
        let counter = match &self.model {
            PmuModel::Intel(_) if (0x4000_0000..0x4000_0004).contains(&index) => {
                index - 0x4000_0000 + 32
            }
            _ if index < 32 => index,
            _ => return Err(FAULT),
        };
        if self.there(counter as usize) { Ok(self.value[counter as usize]) } else { Err(FAULT) }
    }

    pub(crate) fn read(&self, msr: u32) -> ModelAnswer<u64> {
        match self.model.clone() {
            PmuModel::Intel(m) => match msr {
                0xc1..0xc9 if self.there((msr - 0xc1) as usize) => {
                    Ok(self.value[(msr - 0xc1) as usize])
                }
                0x4c1..0x4c9 if m.full_width && self.there((msr - 0x4c1) as usize) => {
                    Ok(self.value[(msr - 0x4c1) as usize])
                }
                0x186..0x18e if self.there((msr - 0x186) as usize) => {
                    Ok(self.select[(msr - 0x186) as usize])
                }
                0x309..0x30d if self.there((msr - 0x309 + 32) as usize) => {
                    Ok(self.value[(msr - 0x309 + 32) as usize])
                }
                0x345 if m.full_width => Ok(0x2000),
                0x1d9 if m.version > 1 => Ok(self.debug),
                0x38d if m.version > 1 => Ok(self.fixed_control),
                0x38e if m.version > 1 => Ok(self.status),
                0x38f if m.version > 1 => Ok(self.control),
                0x390 if m.version > 1 => Ok(0),
                0x391 if m.version > 3 => Ok(0),
                0x392 if m.version > 3 => {
                    let mut used = 0;
                    for i in 0..8 {
                        used |= u64::from(self.select[i] & 0xff != 0) << i;
                        used |= (self.select[i] >> 20 & 1) << 63;
                    }
                    for i in 0..4 {
                        let bits = self.fixed_control >> (4 * i);
                        used |= u64::from(bits & 3 != 0) << (32 + i);
                        used |= (bits >> 3 & 1) << 63;
                    }
                    Ok(used)
                }
                _ => Err(FAULT),
            },
            PmuModel::Amd(m) => match msr {
                0xc001_0000..0xc001_0004 => Ok(self.select[(msr - 0xc001_0000) as usize]),
                0xc001_0004..0xc001_0008 => Ok(self.value[(msr - 0xc001_0004) as usize]),
                0xc001_0200..0xc001_020c if m.counters == 6 => {
                    let i = (msr - 0xc001_0200) as usize / 2;
                    Ok(if msr.is_multiple_of(2) { self.select[i] } else { self.value[i] })
                }
                0x1d9 if m.perfmon_v2 => Ok(self.debug),
                0xc000_0300 if m.perfmon_v2 => Ok(self.status),
                0xc000_0301 if m.perfmon_v2 => Ok(self.control),
                0xc000_0302 | 0xc000_0303 if m.perfmon_v2 => Ok(0),
                _ => Err(FAULT),
            },
        }
    }

    pub(crate) fn write(&mut self, msr: u32, value: u64) -> ModelAnswer<()> {
        self.read(msr)?;
        match self.model {
            PmuModel::Intel(_) => self.write_intel(msr, value),
            PmuModel::Amd(_) => {
                self.write_amd(msr, value);
                Ok(())
            }
        }
    }

    fn write_intel(&mut self, msr: u32, value: u64) -> ModelAnswer<()> {
        let only = |bits: u64| if value & !bits == 0 { Ok(value) } else { Err(FAULT) };
        let fixed = self.mask() >> 32;
        let frozen = if self.version() >= 4 { 1 << 59 } else { 0 };
        match msr {
            0xc1..0xc9 => {
                let low = value & 0xffff_ffff;
                let extended = if low >> 31 == 1 { low | 0xffff_ffff_0000_0000 } else { low };
                let counter = (msr - 0xc1) as usize;
                self.value[counter] = extended & ((1 << self.width(counter)) - 1);
            }
            0x4c1..0x4c9 | 0x309..0x30d => {
                let counter = if msr < 0x4c1 { msr - 0x309 + 32 } else { msr - 0x4c1 } as usize;
                self.value[counter] = only((1 << self.width(counter)) - 1)?;
            }
            0x186..0x18e => self.select[(msr - 0x186) as usize] = only(0xffdf_ffff)?,
            0x38d => {
                let bits = (0..4).filter(|i| fixed >> i & 1 == 1).map(|i| 0xb << (4 * i)).sum();
                self.fixed_control = only(bits)?;
            }
            0x38f => self.control = only(self.mask())?,
            0x390 => self.status &= !only(self.mask() | frozen | 3 << 62)?,
            0x391 => self.status |= only(self.mask() | frozen | 1 << 62)?,
            0x1d9 => self.debug = only(1 << 12)?,
            _ => return Err(FAULT),
        }
        Ok(())
    }

    fn write_amd(&mut self, msr: u32, value: u64) {
        let select = value & 0x0000_000f_ffd7_ffff;
        let count = value & 0xffff_ffff_ffff;
        match msr {
            0xc001_0000..0xc001_0004 => self.select[(msr & 3) as usize] = select,
            0xc001_0004..0xc001_0008 => self.value[(msr & 3) as usize] = count,
            0xc001_0200..0xc001_020c if msr.is_multiple_of(2) => {
                self.select[(msr & 0xf) as usize / 2] = select
            }
            0xc001_0200..0xc001_020c => self.value[(msr & 0xf) as usize / 2] = count,
            0xc000_0301 => self.control = value & 0x3f,
            0xc000_0302 => self.status &= !(value & (0x3f | 1 << 59)),
            0xc000_0303 => self.status |= value & (0x3f | 1 << 59),
            0x1d9 => self.debug = value & 1 << 12,
            _ => {}
        }
    }
}
