//! Descriptors beside the kernel's header.

use std::fs;
use std::process::Command;

use vmtax_pageops::device::{CompletionRecord, Descriptor, Status, flag, opcode};

/// Operations, flags, statuses and places of members are those of the kernel's header for programs.
#[test]
fn descriptors_are_those_of_the_kernels_header() {
    use std::fmt::Write as _;
    let mut expected = Vec::new();
    let mut program = "#include <stddef.h>\n#include <stdio.h>\n#include <linux/idxd.h>\n\
        int main(void) {\n"
        .to_owned();
    let mut say = |expression: &str, value: u64| {
        let print = "printf(\"%s %llu\\n\"";
        writeln!(program, "{print}, \"{expression}\", (unsigned long long)({expression}));")
            .unwrap();
        expected.push(format!("{expression} {value}"));
    };
    for (name, code) in [
        ("NOOP", opcode::NOOP),
        ("BATCH", opcode::BATCH),
        ("DRAIN", opcode::DRAIN),
        ("MEMMOVE", opcode::MEMMOVE),
        ("MEMFILL", opcode::FILL),
        ("COMPARE", opcode::COMPARE),
        ("COMPVAL", opcode::COMPVAL),
        ("CR_DELTA", opcode::CR_DELTA),
        ("AP_DELTA", opcode::AP_DELTA),
        ("DUALCAST", opcode::DUALCAST),
        ("CRCGEN", opcode::CRCGEN),
        ("COPY_CRC", opcode::COPY_CRC),
        ("CFLUSH", opcode::CFLUSH),
    ] {
        say(&format!("DSA_OPCODE_{name}"), code.into());
    }
    for (name, bit) in [
        ("FENCE", flag::FENCE),
        ("BOF", flag::BLOCK_ON_FAULT),
        ("CRAV", flag::CR_ADDR_VALID),
        ("RCR", flag::REQUEST_CR),
        ("RCI", flag::REQUEST_INTERRUPT),
        ("CR", flag::CHECK_RESULT),
        ("CC", flag::CACHE_CONTROL),
    ] {
        say(&format!("IDXD_OP_FLAG_{name}"), bit.into());
    }
    for (name, status) in [
        ("SUCCESS", Status::Success),
        ("SUCCESS_PRED", Status::FalsePredicate),
        ("PAGE_FAULT_NOBOF", Status::PageFault),
        ("BATCH_FAIL", Status::BatchFailed),
        ("BATCH_PAGE_FAULT", Status::BatchPageFault),
        ("DR_OFFSET_NOINC", Status::DeltaOrder),
        ("DR_OFFSET_ERANGE", Status::DeltaRange),
        ("BAD_OPCODE", Status::BadOpcode),
        ("INVALID_FLAGS", Status::BadFlags),
        ("NOZERO_RESERVE", Status::ReservedNonzero),
        ("XFER_ERANGE", Status::BadSize),
        ("DESC_CNT_ERANGE", Status::BadCount),
        ("DR_ERANGE", Status::BadDeltaSize),
        ("OVERLAP_BUFFERS", Status::Overlap),
        ("DCAST_ERR", Status::DualcastMisaligned),
        ("DESCLIST_ALIGN", Status::ListMisaligned),
        ("INT_HANDLE_INVAL", Status::BadInterruptHandle),
        ("CRA_ALIGN", Status::RecordMisaligned),
        ("ADDR_ALIGN", Status::AddressMisaligned),
        ("PRIV_BAD", Status::BadPrivilege),
    ] {
        say(&format!("DSA_COMP_{name}"), status.code().into());
    }
    say("sizeof(struct dsa_hw_desc)", size_of::<Descriptor>() as u64);
    for (member, at) in [
        ("completion_addr", std::mem::offset_of!(Descriptor, completion)),
        ("src_addr", std::mem::offset_of!(Descriptor, src)),
        ("comp_pattern", std::mem::offset_of!(Descriptor, dst)),
        ("desc_count", std::mem::offset_of!(Descriptor, size)),
        ("int_handle", std::mem::offset_of!(Descriptor, interrupt)),
        ("rsvd1", std::mem::offset_of!(Descriptor, reserved)),
        ("delta_addr", std::mem::offset_of!(Descriptor, operands)),
        ("max_delta_size", std::mem::offset_of!(Descriptor, operands) + 8),
        ("expected_res_mask", std::mem::offset_of!(Descriptor, operands) + 16),
        ("delta_rec_size", std::mem::offset_of!(Descriptor, operands)),
        ("expected_res", std::mem::offset_of!(Descriptor, operands)),
        ("dest2", std::mem::offset_of!(Descriptor, operands)),
        ("crc_seed", std::mem::offset_of!(Descriptor, operands)),
    ] {
        say(&format!("offsetof(struct dsa_hw_desc, {member})"), at as u64);
    }
    say("sizeof(struct dsa_completion_record)", size_of::<CompletionRecord>() as u64);
    // As the assertions beside the definitions have them.
    let record = [("status", 0), ("result", 1), ("bytes_completed", 4), ("fault_addr", 8)];
    for (member, at) in record.into_iter().chain([("crc_val", 16), ("delta_rec_size", 16)]) {
        say(&format!("offsetof(struct dsa_completion_record, {member})"), at);
    }
    program.push_str("return 0; }\n");
    let dir = tempfile::tempdir().unwrap();
    let (source, binary) = (dir.path().join("idxd.c"), dir.path().join("idxd"));
    fs::write(&source, program).unwrap();
    let made = Command::new("gcc").arg("-o").args([&binary, &source]).output().expect("gcc");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let said = String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}
