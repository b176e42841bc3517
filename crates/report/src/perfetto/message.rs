//! Perfetto's messages, as far as a trace here needs them: names and field numbers of `protos/perfetto/trace/`.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TracePacketDefaults {
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
    #[prost(string, repeated, tag = "8")]
    pub process_labels: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    pub thread_name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    #[prost(uint64, optional, tag = "17")]
    pub string_value_iid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<Interned>,
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<Interned>,
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<Interned>,
    #[prost(message, repeated, tag = "29")]
    pub debug_annotation_string_values: Vec<Interned>,
}

/// `EventCategory`, `EventName`, `DebugAnnotationName` and `InternedString` are alike.
#[derive(Clone, PartialEq, Message)]
pub struct Interned {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Perfetto's own Python package (0.59.1) reads them: every field number once, by hand.
    #[test]
    fn fields_have_the_numbers_of_perfetto() {
        let interned = Interned { iid: Some(1), name: Some("n".into()) };
        let one = |field: u8| vec![field << 3 | 2, 5, 8, 1, 18, 1, b'n'];
        assert_eq!(interned.encode_to_vec(), [8, 1, 18, 1, b'n']);
        let event = TrackEvent {
            category_iids: vec![1],
            debug_annotations: vec![DebugAnnotation {
                name_iid: Some(2),
                uint_value: Some(3),
                ..Default::default()
            }],
            r#type: Some(1),
            name_iid: Some(4),
            track_uuid: Some(5),
        };
        assert_eq!(event.encode_to_vec(), [24, 1, 34, 4, 8, 2, 24, 3, 72, 1, 80, 4, 88, 5]);
        let text = DebugAnnotation {
            string_value: Some("s".into()),
            string_value_iid: Some(6),
            ..Default::default()
        };
        assert_eq!(text.encode_to_vec(), [50, 1, b's', 0x88, 1, 6]);
        let names = InternedData {
            event_categories: vec![interned.clone()],
            event_names: vec![interned.clone()],
            debug_annotation_names: vec![interned.clone()],
            debug_annotation_string_values: vec![interned],
        };
        let expected = [one(1), one(2), one(3), vec![0xea, 1, 5, 8, 1, 18, 1, b'n']].concat();
        assert_eq!(names.encode_to_vec(), expected);
        let track = TrackDescriptor {
            uuid: Some(1),
            name: Some("t".into()),
            process: Some(ProcessDescriptor {
                pid: Some(2),
                process_name: Some("p".into()),
                process_labels: vec!["l".into()],
            }),
            thread: Some(ThreadDescriptor {
                pid: Some(2),
                tid: Some(3),
                thread_name: Some("h".into()),
            }),
            parent_uuid: Some(4),
        };
        let process = [26, 8, 8, 2, 50, 1, b'p', 66, 1, b'l'];
        let thread = [34, 7, 8, 2, 16, 3, 42, 1, b'h'];
        let expected = [&[8, 1, 18, 1, b't'][..], &process, &thread, &[40, 4]].concat();
        assert_eq!(track.encode_to_vec(), expected);
        let packet = TracePacket {
            timestamp: Some(9),
            trusted_packet_sequence_id: Some(1),
            track_event: Some(TrackEvent::default()),
            interned_data: Some(InternedData::default()),
            sequence_flags: Some(2),
            trace_packet_defaults: Some(TracePacketDefaults { timestamp_clock_id: Some(6) }),
            track_descriptor: Some(TrackDescriptor::default()),
        };
        let expected = [64, 9, 80, 1, 90, 0, 98, 0, 104, 2, 0xda, 3, 3, 0xd0, 3, 6, 0xe2, 3, 0];
        assert_eq!(packet.encode_to_vec(), expected);
        assert_eq!(Trace { packet: vec![TracePacket::default()] }.encode_to_vec(), [10, 0]);
    }
}
