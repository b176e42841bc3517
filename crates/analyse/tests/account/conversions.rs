//! Conversions between private and shared memory, memory-fault exits and pre-faults: the accesses of table `conversion`.

use vmtax_analyse::{Filter, KeyValue, LedgerBuilder, SortedTable, TableKind};
use vmtax_events::{Detail, DetailKind, Losses, Recording};

use super::script::{check, run, script};

#[test]
fn an_exit_with_a_memory_fault_is_about_its_region() {
    check(
        "KVM_EXIT_MEMORY_FAULT",
        "10 exit npf; 11 fault 0x12345678; 12 user 39; 20 entry",
        "exit npf memory-fault=0x12200000 user : 10
         access memory-fault=0x12200000 : 8",
    );
    check(
        "without kvm_page_fault the region is not known",
        "10 exit npf; 12 user 39; 20 entry",
        "exit npf memory-fault=0xffffffffffffffff user : 10
         access memory-fault=0xffffffffffffffff : 8",
    );
    check(
        "another exit to the VMM",
        "10 exit npf; 11 fault 0x12345678; 12 user 6; 20 entry",
        "exit npf page-fault=0x12200000 user : 10",
    );
}

#[test]
fn changes_of_attributes_are_counted_by_size_and_direction() {
    check(
        "the VMM answers a hypercall",
        "10 exit hypercall; 11 hypercall 12; 12 user 3; 13 attributes 0x400 0x600 8; 14 attributes 0x400 0x401 0; 20 entry",
        "exit hypercall hypercall=12 user : 10
         access to-private=0x200000 : -
         access to-shared=0x1000 : -
         access hypercall=12 : 9",
    );
    check("another thread of the VMM is no vCPU", "10 t150 attributes 0 1 8", "");
    check(
        "an end before its start",
        "10 exit cpuid; 12 attributes 5 4 8; 20 entry",
        "exit cpuid kernel : 10
         access to-private=0 : -",
    );
}

#[test]
fn a_page_that_is_mapped_outside_of_a_fault_was_asked_for() {
    check(
        "a fault",
        "10 exit npf; 11 fault 0x200000; 12 map 0x200 2; 20 entry",
        "exit npf page-fault=0x200000 kernel : 10",
    );
    check(
        "while the VMM answers an exit",
        "10 exit io; 12 user 2; 13 map 0x200 1; 14 map 0x201 2; 15 map 0x201 3; 16 map 0 4; 17 map 0 0; 20 entry",
        "exit io port-out=0 user : 10
         access pre-fault=0x1000 : -
         access pre-fault=0x200000 : -
         access pre-fault=0x40000000 : -",
    );
    check(
        "before the vCPU first ran",
        "10 t102 map 0x200 1; 20 t102 entry; 30 t102 exit cpuid; 40 t102 entry",
        "access 100/1 pre-fault=0x1000 : -
         exit 100/1 cpuid kernel : 10",
    );
    check("a thread of the kernel", "10 t100 map 0x200 1", "");
}

/// Requests through the GHCB and TDVMCALLs are exits without an access of their own.
#[test]
fn the_table_has_requests_of_every_kind_of_vm_once() {
    let events = "10 exit hypercall; 11 hypercall 12; 20 entry; 30 exit vmgexit; 31 ghcb 0x80000010; 40 entry; \
                  50 exit vmgexit; 51 ghcb 0x7c; 60 entry; 70 exit hypercall; 71 hypercall 5; 80 entry";
    let rows = run(1000, &script(events));
    let mut builder = LedgerBuilder::new(Filter::default(), 1000);
    rows.exits.iter().for_each(|row| builder.exit(row));
    rows.accesses.iter().for_each(|row| builder.access(row));
    let ledger = builder.finish(Recording::default(), Losses::default(), true);
    let table = SortedTable::new(&ledger, TableKind::Conversion, &[]);
    let found: Vec<_> = table.rows.iter().map(|row| (row.key[0], row.tally.count)).collect();
    let detail = |kind, value| KeyValue::Detail(Detail::new(kind, value));
    assert_eq!(
        found,
        [(detail(DetailKind::Ghcb, 0x8000_0010), 1), (detail(DetailKind::Hypercall, 12), 1)]
    );
}
