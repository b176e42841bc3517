//! The CSV, compared to the byte, and read back by a reader of RFC 4180.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "shared with the tests of other renderers")]
mod ledgers;

use vmtax_report::csv::Csv;
use vmtax_report::{Document, Renderer};

fn rendered(document: &Document) -> String {
    let mut out = Vec::new();
    Csv.render(document, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[track_caller]
fn check(document: &Document, expected: &str) {
    let actual = rendered(document);
    assert!(!actual.replace("\r\n", "").contains(['\r', '\n']));
    let actual = actual.replace("\r\n", "\n");
    assert!(actual == expected, "expected:\n{expected}\nactual:\n{actual}");
}

/// Records of fields, as RFC 4180 has them.
fn parse(text: &str) -> Vec<Vec<String>> {
    let mut records = vec![vec![String::new()]];
    let mut quoted = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let record = records.last_mut().unwrap();
        let cell = record.last_mut().unwrap();
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => cell.push(chars.next().unwrap()),
            '"' => quoted = !quoted,
            ',' if !quoted => record.push(String::new()),
            '\r' if !quoted => assert_eq!(chars.next(), Some('\n')),
            _ => cell.push(c),
        }
        if c == '\r' && !quoted {
            records.push(vec![String::new()]);
        }
    }
    assert_eq!(records.pop(), Some(vec![String::new()]), "the last record ends too");
    records
}

#[test]
fn tables_time_and_losses() {
    check(
        &ledgers::small(),
        r#"table,accelerator,l2_reason,reason,level,cause,detail_kind,detail,detail_name,outcome,vm,vm_name,vcpu,to_l1,count,timed,time_ns,min_ns,max_ns,mean_ns,stderr_ns,p50_ns,p90_ns,p99_ns,operation,per_operation,path,path_min,path_max,batches,l2_over_l1,share_l0,share_l1,share_l2
vmexit,unknown,,hlt,L1,,,,,,,,,,2,2,500000000,200000000,300000000,250000000.000,50000000.000,200278015,300000000,300000000,,,,,,,,,,
vmexit,unknown,,io,L1,,,,,,,,,,2000,2000,85995000,40000,46000,42997.500,44.719,43007,46000,46000,,,,,,,,,,
vmexit,unknown,,msr,L1,,,,,,,,,,400,400,600000,1500,1500,1500.000,0.000,1500,1500,1500,,,,,,,,,,
vmexit,unknown,,cpuid,L1,,,,,,,,,,3,3,3600,1100,1300,1200.000,57.735,1207,1300,1300,,,,,,,,,,
ioport,unknown,,,,,port-in,0xcfc,PCI config data,,,,,,2000,2000,85995000,40000,46000,42997.500,44.719,43007,46000,46000,,,,,,,,,,
msr,unknown,,,,,msr-write,0x6e0,IA32_TSC_DEADLINE,,,,,,400,400,560000,1400,1400,1400.000,0.000,1400,1400,1400,,,,,,,,,,
cause,unknown,,,,idle,,,,,,,,,2,2,500000000,200000000,300000000,250000000.000,50000000.000,200278015,300000000,300000000,,,,,,,,,,
cause,unknown,,,,device-pio,,,,,,,,,2000,2000,85995000,40000,46000,42997.500,44.719,43007,46000,46000,,,,,,,,,,
cause,unknown,,,,timer-arm,,,,,,,,,400,400,600000,1500,1500,1500.000,0.000,1500,1500,1500,,,,,,,,,,
cause,unknown,,,,cpuid,,,,,,,,,3,3,3600,1100,1300,1200.000,57.735,1207,1300,1300,,,,,,,,,,
time,unknown,,,,,,,wall,,1234,qemu-system-x86,0,,,,900000000,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,guest,,1234,qemu-system-x86,0,,,,813393400,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,exit-kernel,,1234,qemu-system-x86,0,,,,606600,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,exit-user,,1234,qemu-system-x86,0,,,,85000000,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,halted,,1234,qemu-system-x86,0,,,,0,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,preempted,,1234,qemu-system-x86,0,,,,1000000,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,unknown,,1234,qemu-system-x86,0,,,,0,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,wall,,1234,qemu-system-x86,1,,,,900000000,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,guest,,1234,qemu-system-x86,1,,,,395000000,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,exit-kernel,,1234,qemu-system-x86,1,,,,0,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,exit-user,,1234,qemu-system-x86,1,,,,0,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,halted,,1234,qemu-system-x86,1,,,,500000000,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,preempted,,1234,qemu-system-x86,1,,,,0,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,unknown,,1234,qemu-system-x86,1,,,,5000000,,,,,,,,,,,,,,,,,
losses,unknown,,,,,,,recorder_lost,,,,,,47,,,,,,,,,,,,,,,,,,,
losses,unknown,,,,,,,unpaired_exits,,,,,,1,,,,,,,,,,,,,,,,,,,
losses,unknown,,,,,,,incomplete,,,,,,1,,,,,,,,,,,,,,,,,,,
losses,unknown,,,,,,,truncated: trace.dat ends inside the record at offset 4096.,,,,,,1,,,,,,,,,,,,,,,,,,,
"#,
    );
}

#[test]
fn nested_rows_name_the_exit_of_l2() {
    check(
        &ledgers::nesting(),
        r#"table,accelerator,l2_reason,reason,level,cause,detail_kind,detail,detail_name,outcome,vm,vm_name,vcpu,to_l1,count,timed,time_ns,min_ns,max_ns,mean_ns,stderr_ns,p50_ns,p90_ns,p99_ns,operation,per_operation,path,path_min,path_max,batches,l2_over_l1,share_l0,share_l1,share_l2
vmexit,emulated:QEMU TCG,,msr,L1,,,,,,,,,,150,150,450000,3000,3000,3000.000,0.000,3000,3000,3000,,,,,,,,,,
vmexit,emulated:QEMU TCG,,vmrun,L1,,,,,,,,,,100,100,300000,3000,3000,3000.000,0.000,3000,3000,3000,,,,,,,,,,
vmexit,emulated:QEMU TCG,,cpuid,L2,,,,,,,,,,100,100,200000,2000,2000,2000.000,0.000,2000,2000,2000,,,,,,,,,,
nested,emulated:QEMU TCG,cpuid,cpuid,L2,,,,,,,,,100,100,100,200000,2000,2000,2000.000,0.000,2000,2000,2000,,,,,,,,,,
nested,emulated:QEMU TCG,cpuid,msr,L1,,msr-read,0x1d9,IA32_DEBUGCTL,,,,,,150,150,450000,3000,3000,3000.000,0.000,3000,3000,3000,,,,,,,,,,
nested,emulated:QEMU TCG,cpuid,vmrun,L1,,,,,,,,,,100,100,300000,3000,3000,3000.000,0.000,3000,3000,3000,,,,,,,,,,
"#,
    );
}

#[test]
fn operations_have_a_row_and_one_for_each_kind_of_their_exits() {
    let text = rendered(&ledgers::lab()).replace("\r\n", "\n");
    let expected = r#"operation,emulated:QEMU TCG (icount),,,L1,,,,,,1,cpuid,,,200,,,,,,,,,,cpuid,1.005,1036,1035.5,1036.5,3,,0.9720930232558139,0.027906976744186046,
operation-exit,emulated:QEMU TCG (icount),,cpuid,L1,,cpuid,0x0,,,1,cpuid,,,200,,,,,,,,,,cpuid,1,,,,,,,,
operation-exit,emulated:QEMU TCG (icount),,interrupt,L1,,,,,,1,cpuid,,,1,,,,,,,,,,cpuid,0.005,,,,,,,,
operation,emulated:QEMU TCG (icount),,,L1,,,,,,2,hlt-timer,,,20,,,,,,,,,,hlt-timer,2.5,14910,14820,15000,2,,0.04186046511627907,0.027906976744186046,
operation-exit,emulated:QEMU TCG (icount),,msr,L1,,msr-write,0x6e0,IA32_TSC_DEADLINE,,2,hlt-timer,,,30,,,,,,,,,,hlt-timer,1.5,,,,,,,,
operation-exit,emulated:QEMU TCG (icount),,hlt,L1,,,,,,2,hlt-timer,,,20,,,,,,,,,,hlt-timer,1,,,,,,,,
operation,emulated:QEMU TCG (icount),,,L1,,,,,,3,rdtsc,,,1000,,,,,,,,,,rdtsc,0,1,1,1,3,,,,
operation,emulated:QEMU TCG (icount),,,L1,,,,,,4,touch-4k,,,100,,,,,,,,,,touch-4k,1,,,,,,0.8333333333333334,0.16666666666666666,
operation-exit,emulated:QEMU TCG (icount),,npf,L1,,page-fault,0x200000,,,4,touch-4k,,,60,,,,,,,,,,touch-4k,0.6,,,,,,,,
operation-exit,emulated:QEMU TCG (icount),,npf,L1,,page-fault,0x400000,,,4,touch-4k,,,40,,,,,,,,,,touch-4k,0.4,,,,,,,,
operation,emulated:QEMU TCG (icount),,,L2,,,,,,101,cpuid@L2,,200,200,,,,,,,,,,cpuid,6,24120.25,24119,24150,3,23.282094594594593,0.6938775510204082,0.3040816326530612,0.0020408163265306124
operation-exit,emulated:QEMU TCG (icount),,cpuid,L2,,cpuid,0x0,,,101,cpuid@L2,,,200,,,,,,,,,,cpuid,1,,,,,,,,
operation-exit,emulated:QEMU TCG (icount),cpuid,vmload,L1,,,,,,101,cpuid@L2,,,400,,,,,,,,,,cpuid,2,,,,,,,,
"#;
    let (_, rows) = text.split_once('\n').unwrap();
    assert!(rows.starts_with(expected), "expected:\n{expected}\nactual:\n{rows}");
}

#[test]
fn times_that_are_not_known_are_empty() {
    check(
        &ledgers::counts(),
        r#"table,accelerator,l2_reason,reason,level,cause,detail_kind,detail,detail_name,outcome,vm,vm_name,vcpu,to_l1,count,timed,time_ns,min_ns,max_ns,mean_ns,stderr_ns,p50_ns,p90_ns,p99_ns,operation,per_operation,path,path_min,path_max,batches,l2_over_l1,share_l0,share_l1,share_l2
vmexit,unknown,,io,L1,,,,,,,,,,143258,0,,,,,,,,,,,,,,,,,,
vmexit,unknown,,interrupt,L1,,,,,,,,,,143007,0,,,,,,,,,,,,,,,,,,
vmexit,unknown,,hlt,L1,,,,,,,,,,146,0,,,,,,,,,,,,,,,,,,
"#,
    );
}

#[test]
fn csv_of_an_empty_ledger_is_its_header() {
    let text = rendered(&ledgers::empty());
    assert_eq!(text.matches("\r\n").count(), 1);
}

#[test]
fn huge_numbers_are_exact() {
    check(
        &ledgers::huge(),
        r#"table,accelerator,l2_reason,reason,level,cause,detail_kind,detail,detail_name,outcome,vm,vm_name,vcpu,to_l1,count,timed,time_ns,min_ns,max_ns,mean_ns,stderr_ns,p50_ns,p90_ns,p99_ns,operation,per_operation,path,path_min,path_max,batches,l2_over_l1,share_l0,share_l1,share_l2
vmexit,unknown,,0xfffffffe,L1,device-mmio,mmio-write,0xffffffffffffffff,,user,4294967295,,,,18446744073709551615,3,18446744073709551615,1,18446744073709551615,6148914691236516864.000,6148914691236517888.000,18446744073709551615,18446744073709551615,18446744073709551615,,,,,,,,,,
time,unknown,,,,,,,wall,,1234,qemu-system-x86,7,,,,18446744073709551615,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,guest,,1234,qemu-system-x86,7,,,,18446744073709551615,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,exit-kernel,,1234,qemu-system-x86,7,,,,2305843009213693951,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,exit-user,,1234,qemu-system-x86,7,,,,2305843009213693951,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,halted,,1234,qemu-system-x86,7,,,,4611686018427387903,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,preempted,,1234,qemu-system-x86,7,,,,2305843009213693951,,,,,,,,,,,,,,,,,
time,unknown,,,,,,,unknown,,1234,qemu-system-x86,7,,,,18446744073709551615,,,,,,,,,,,,,,,,,
losses,unknown,,,,,,,recorder_lost,,,,,,18446744073709551615,,,,,,,,,,,,,,,,,,,
losses,unknown,,,,,,,details_dropped,,,,,,18446744073709551615,,,,,,,,,,,,,,,,,,,
"#,
    );
}

#[test]
fn hostile_strings_stay_in_their_cell_and_are_no_formulas() {
    let records = parse(&rendered(&ledgers::hostile()));
    let vm_name = records[0].iter().position(|column| column == "vm_name").unwrap();
    for record in records.iter().chain(&parse(&rendered(&ledgers::hostile_lab()))) {
        assert_eq!(record.len(), records[0].len());
        for cell in record {
            assert!(!cell.starts_with(['=', '+', '-', '@']), "{cell}");
            assert_eq!(cell.find(vmtax_report::names::is_hidden), None, "{cell}");
        }
    }
    assert_eq!(
        records[2][vm_name],
        r#"'=1+1\u{1b}]0;owned\u{7}\u{1b}[31m"a,b"\u{d}\u{a}<script>alert(1)</script></style></title>--><img src=x onerror=alert(2)>'`&amp;{{x}}\u{202e}gnp.exe\u{0}"#
    );
}

#[test]
fn functions_of_call_trees() {
    let document = ledgers::called();
    let table = vmtax_report::calls::table(&document.ledger, document.calls.unwrap());
    let mut out = Vec::new();
    table.csv(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.starts_with(
            "operation,level,self,total,share,calls,code_level,kind,function,module\r\n"
        )
    );
    let of_run = "cpuid,L1,2000,3000,1,1,L0,function,kvm_arch_vcpu_ioctl_run,kvm\r\n";
    assert!(text.contains(of_run), "{text}");
    assert_eq!(text.lines().count(), 4, "{text}");
}
