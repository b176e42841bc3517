//! Layout of a sample, by the `sample_type` of its attribute.

use crate::import::tracepoint::Endian;

/// Bits of `sample_type` (Linux `include/uapi/linux/perf_event.h`).
mod bit {
    pub(super) const IP: u64 = 1 << 0;
    pub(super) const TID: u64 = 1 << 1;
    pub(super) const TIME: u64 = 1 << 2;
    pub(super) const ADDR: u64 = 1 << 3;
    pub(super) const READ: u64 = 1 << 4;
    pub(super) const CALLCHAIN: u64 = 1 << 5;
    pub(super) const ID: u64 = 1 << 6;
    pub(super) const CPU: u64 = 1 << 7;
    pub(super) const PERIOD: u64 = 1 << 8;
    pub(super) const STREAM_ID: u64 = 1 << 9;
    pub(super) const RAW: u64 = 1 << 10;
    pub(super) const IDENTIFIER: u64 = 1 << 16;
}

/// Bits of `read_format`.
mod read_bit {
    pub(super) const TIME_ENABLED: u64 = 1 << 0;
    pub(super) const TIME_RUNNING: u64 = 1 << 1;
    pub(super) const ID: u64 = 1 << 2;
    pub(super) const GROUP: u64 = 1 << 3;
    pub(super) const LOST: u64 = 1 << 4;
}

const RECORD_HEADER: usize = 8;

/// Number reading in the byte order of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderedBytes(pub(super) Endian);

impl OrderedBytes {
    #[inline(always)]
    pub(super) fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let b = bytes.get(at..)?.first_chunk()?;
        Some(match self.0 {
            Endian::Little => u16::from_le_bytes(*b),
            Endian::Big => u16::from_be_bytes(*b),
        })
    }

    #[inline(always)]
    pub(super) fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let b = bytes.get(at..)?.first_chunk()?;
        Some(match self.0 {
            Endian::Little => u32::from_le_bytes(*b),
            Endian::Big => u32::from_be_bytes(*b),
        })
    }

    #[inline(always)]
    pub(super) fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let b = bytes.get(at..)?.first_chunk()?;
        Some(match self.0 {
            Endian::Little => u64::from_le_bytes(*b),
            Endian::Big => u64::from_be_bytes(*b),
        })
    }
}

/// The layout of one attribute's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttributeLayout {
    sample_type: u64,
    read_format: u64,
    sample_id_all: bool,
    /// The id of the event.
    id: Option<usize>,
    ip: Option<usize>,
    tid: Option<usize>,
    time: Option<usize>,
    cpu: Option<usize>,
    period: Option<usize>,
    /// Offset of the first field of variable length, from the start of the record.
    variable: usize,
    /// There is a field of variable length before the raw data.
    has_variable: bool,
}

/// A sample's fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleFields<'a> {
    /// (process, thread)
    pub(super) tid: Option<(u32, u32)>,
    pub(super) time: u64,
    pub(super) cpu: Option<u32>,
    pub(super) raw: &'a [u8],
}

/// A sample of a profile.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProfileSample<'a> {
    pub(super) ip: u64,
    /// (process, thread)
    pub(super) tid: (u32, u32),
    /// 0 where samples have no time.
    pub(super) time: u64,
    /// Events that the sample represents; 1 if unknown.
    pub(super) period: u64,
    /// The call chain's words, in the file's byte order.
    pub(super) chain: &'a [u8],
}

/// The fields that `sample_id_all` puts behind other records.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SampleId {
    pub(super) time: Option<u64>,
    pub(super) cpu: Option<u32>,
}

impl AttributeLayout {
    pub(super) fn new(sample_type: u64, read_format: u64, sample_id_all: bool) -> AttributeLayout {
        let mut at = RECORD_HEADER;
        let mut field = |bit: u64| {
            (sample_type & bit != 0).then(|| {
                at += 8;
                at - 8
            })
        };
        let identifier = field(bit::IDENTIFIER);
        let ip = field(bit::IP);
        let tid = field(bit::TID);
        let time = field(bit::TIME);
        field(bit::ADDR);
        let id = field(bit::ID);
        field(bit::STREAM_ID);
        let cpu = field(bit::CPU);
        let period = field(bit::PERIOD);
        AttributeLayout {
            sample_type,
            read_format,
            sample_id_all,
            id: identifier.or(id),
            ip,
            tid,
            time,
            cpu,
            period,
            variable: at,
            has_variable: sample_type & (bit::READ | bit::CALLCHAIN) != 0,
        }
    }

    /// Whether samples have a time and the tracepoint's data, which the analysis needs.
    pub(super) fn is_usable(&self) -> bool {
        self.time.is_some() && self.sample_type & bit::RAW != 0
    }

    /// Position of the event id in a sample.
    pub(super) fn id(&self) -> Option<usize> {
        self.id
    }

    /// Whether samples say how many events they stand for.
    pub(super) fn has_period(&self) -> bool {
        self.period.is_some()
    }

    /// How many events a sample stands for, as it says itself.
    pub(super) fn period(&self, record: &[u8], bytes: OrderedBytes) -> Option<u64> {
        bytes.u64(record, self.period?)
    }

    /// The fields of a sample record (its header included). `None` if it is too short.
    #[inline(always)]
    pub(super) fn sample<'a>(
        &self,
        record: &'a [u8],
        bytes: OrderedBytes,
    ) -> Option<SampleFields<'a>> {
        let time = bytes.u64(record, self.time?)?;
        let tid = match self.tid {
            Some(at) => Some((bytes.u32(record, at)?, bytes.u32(record, at + 4)?)),
            None => None,
        };
        let cpu = match self.cpu {
            Some(at) => Some(bytes.u32(record, at)?),
            None => None,
        };
        let mut at = self.variable;
        if self.has_variable {
            at = self.skip_variable(record, at, bytes)?;
        }
        let size = bytes.u32(record, at)? as usize;
        let raw = record.get(at + 4..)?.get(..size)?;
        Some(SampleFields { tid, time, cpu, raw })
    }

    /// Decodes a sample of a profile. `None` if it lacks an address, or is too short.
    pub(super) fn sampled<'a>(
        &self,
        record: &'a [u8],
        bytes: OrderedBytes,
    ) -> Option<ProfileSample<'a>> {
        let ip = bytes.u64(record, self.ip?)?;
        let tid = self.tid?;
        let time = self.time.and_then(|at| bytes.u64(record, at)).unwrap_or(0);
        let chain = if self.sample_type & bit::CALLCHAIN != 0 {
            let at = self.skip_read(record, self.variable, bytes)?;
            let nr = usize::try_from(bytes.u64(record, at)?).ok()?;
            record.get(at + 8..)?.get(..nr.checked_mul(8)?)?
        } else {
            &[]
        };
        Some(ProfileSample {
            ip,
            tid: (bytes.u32(record, tid)?, bytes.u32(record, tid + 4)?),
            time,
            period: self.period.and_then(|at| bytes.u64(record, at)).unwrap_or(1),
            chain,
        })
    }

    #[cold]
    fn skip_variable(&self, record: &[u8], at: usize, bytes: OrderedBytes) -> Option<usize> {
        let mut at = self.skip_read(record, at, bytes)?;
        if self.sample_type & bit::CALLCHAIN != 0 {
            let nr = usize::try_from(bytes.u64(record, at)?).ok()?;
            at = nr.checked_mul(8)?.checked_add(at + 8)?;
        }
        Some(at)
    }

    fn skip_read(&self, record: &[u8], mut at: usize, bytes: OrderedBytes) -> Option<usize> {
        if self.sample_type & bit::READ != 0 {
            let times = self.read_format & (read_bit::TIME_ENABLED | read_bit::TIME_RUNNING);
            let times = times.count_ones() as usize;
            let per_value =
                1 + (self.read_format & (read_bit::ID | read_bit::LOST)).count_ones() as usize;
            let values = if self.read_format & read_bit::GROUP != 0 {
                let nr = usize::try_from(bytes.u64(record, at)?).ok()?;
                at += 8;
                nr
            } else {
                1
            };
            at = values
                .checked_mul(per_value)?
                .checked_add(times)?
                .checked_mul(8)?
                .checked_add(at)?;
        }
        Some(at)
    }

    /// The trailer of a record that is not a sample.
    pub(super) fn sample_id(&self, record: &[u8], bytes: OrderedBytes) -> SampleId {
        if !self.sample_id_all {
            return SampleId::default();
        }
        // From the end: IDENTIFIER, CPU, STREAM_ID, ID, TIME, TID.
        let mut back = 0;
        let mut field = |bit: u64| {
            (self.sample_type & bit != 0).then(|| {
                back += 8;
                record.len().checked_sub(back).filter(|&at| at >= RECORD_HEADER)
            })
        };
        field(bit::IDENTIFIER);
        let cpu = field(bit::CPU).flatten();
        field(bit::STREAM_ID);
        field(bit::ID);
        let time = field(bit::TIME).flatten();
        SampleId {
            time: time.and_then(|at| bytes.u64(record, at)),
            cpu: cpu.and_then(|at| bytes.u32(record, at)),
        }
    }

    /// The per-event lost count of a PERF_RECORD_READ: (event id, events lost so far).
    pub(super) fn lost_of_read(&self, record: &[u8], bytes: OrderedBytes) -> Option<(u64, u64)> {
        let wanted = read_bit::ID | read_bit::LOST;
        if self.read_format & wanted != wanted || self.read_format & read_bit::GROUP != 0 {
            return None;
        }
        // header, pid + tid, value, then the times that are asked for.
        let times = self.read_format & (read_bit::TIME_ENABLED | read_bit::TIME_RUNNING);
        let at = RECORD_HEADER + 8 + 8 + 8 * times.count_ones() as usize;
        Some((bytes.u64(record, at)?, bytes.u64(record, at + 8)?))
    }
}
