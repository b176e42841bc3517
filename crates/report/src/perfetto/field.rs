//! Field numbers of the Perfetto trace, by message: `protos/perfetto/trace/` of the Perfetto project.

pub(super) mod trace {
    pub(crate) const PACKET: u32 = 1;
}
pub(super) mod packet {
    pub(crate) const TIMESTAMP: u32 = 8;
    pub(crate) const SEQUENCE_ID: u32 = 10;
    pub(crate) const TRACK_EVENT: u32 = 11;
    pub(crate) const INTERNED_DATA: u32 = 12;
    pub(crate) const SEQUENCE_FLAGS: u32 = 13;
    pub(crate) const DEFAULTS: u32 = 59;
    pub(crate) const TRACK_DESCRIPTOR: u32 = 60;
    /// In `TracePacketDefaults` as in `TracePacket`.
    pub(crate) const TIMESTAMP_CLOCK_ID: u32 = 58;
}
pub(super) mod interned {
    pub(crate) const CATEGORIES: u32 = 1;
    pub(crate) const EVENT_NAMES: u32 = 2;
    pub(crate) const ANNOTATION_NAMES: u32 = 3;
    pub(crate) const ANNOTATION_STRINGS: u32 = 29;
    /// Of each entry.
    pub(crate) const IID: u32 = 1;
    /// Of each entry.
    pub(crate) const NAME: u32 = 2;
}
pub(super) mod track {
    pub(crate) const UUID: u32 = 1;
    pub(crate) const NAME: u32 = 2;
    pub(crate) const PROCESS: u32 = 3;
    pub(crate) const THREAD: u32 = 4;
    pub(crate) const PARENT: u32 = 5;
}
pub(super) mod process {
    pub(crate) const PID: u32 = 1;
    pub(crate) const NAME: u32 = 6;
    pub(crate) const LABELS: u32 = 8;
}
pub(super) mod thread {
    pub(crate) const PID: u32 = 1;
    pub(crate) const TID: u32 = 2;
    pub(crate) const NAME: u32 = 5;
}
pub(super) mod event {
    pub(crate) const CATEGORY_IIDS: u32 = 3;
    pub(crate) const ANNOTATIONS: u32 = 4;
    pub(crate) const TYPE: u32 = 9;
    pub(crate) const NAME_IID: u32 = 10;
    pub(crate) const TRACK_UUID: u32 = 11;
}
pub(super) mod annotation {
    pub(crate) const NAME_IID: u32 = 1;
    pub(crate) const UINT: u32 = 3;
    pub(crate) const STRING: u32 = 6;
    pub(crate) const STRING_IID: u32 = 17;
}
