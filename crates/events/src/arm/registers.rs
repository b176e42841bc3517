//! System registers and system instructions by their encoding.
//!
//! Names are Linux's: `arch/arm64/include/asm/sysreg.h` and `arch/arm64/tools/sysreg` (6.12), of which registers of
//! external trace units and the nXS forms of TLBI are left out; CNTVCT_EL0 and CNTV_TVAL_EL0 from the Arm ARM (DDI 0487).
//! A register without a name keeps its generic one: `S3_0_C15_C2_0`.

use crate::Cause;
use crate::detail::table;

/// The number of a register: Op0, Op1, CRn, CRm and Op2 as in MRS, 16 bits (KVM's `ARM64_SYS_REG` has them in the same places).
pub const fn id(op0: u64, op1: u64, crn: u64, crm: u64, op2: u64) -> u64 {
    (op0 & 3) << 14 | (op1 & 7) << 11 | (crn & 15) << 7 | (crm & 15) << 3 | op2 & 7
}

/// The register of the syndrome (ESR_ELx) of a trapped MSR, MRS or system instruction, and whether it was written.
/// Arm ARM, "ISS encoding for an exception from MSR, MRS, or System instruction execution in AArch64 state".
pub fn of_syndrome(esr: u64) -> (u64, bool) {
    let bits = |at: u32, mask: u64| esr >> at & mask;
    let id = id(bits(20, 3), bits(14, 7), bits(10, 15), bits(1, 15), bits(17, 7));
    (id, esr & 1 == 0)
}

/// All registers with a name.
pub fn named() -> impl Iterator<Item = u64> {
    REGISTERS.iter().map(|&(number, _)| number)
}

/// The name of a register or system instruction, generic where the table has none.
pub fn name(number: u64) -> String {
    match table::name_of(REGISTERS, number) {
        Some(name) => name.to_owned(),
        None => label(number),
    }
}

/// Whether a number is that of a system instruction (TLBI, AT, DC), not of a register.
pub fn is_instruction(number: u64) -> bool {
    parts(number).0 == 1
}

/// The five parts of a number, in the order of [`id`].
fn parts(id: u64) -> (u64, u64, u64, u64, u64) {
    (id >> 14 & 3, id >> 11 & 7, id >> 7 & 15, id >> 3 & 15, id & 7)
}

/// `S3_3_C14_C3_1 CNTV_CTL_EL0`: the generic name, and the name where the table has one.
pub(crate) fn label(number: u64) -> String {
    if number > 0xffff {
        return format!("{number:#x}");
    }
    let (op0, op1, crn, crm, op2) = parts(number);
    let generic = format!("S{op0}_{op1}_C{crn}_C{crm}_{op2}");
    match table::name_of(REGISTERS, number) {
        Some(name) => format!("{generic} {name}"),
        None => generic,
    }
}

/// What a guest does by reading or writing a register.
///
/// A register without a name says no more. EL2's registers, and EL1's by the names that EL2 has for them (EL12, EL02), are those of a hypervisor: Op1 4 and 5.
pub(crate) fn cause(number: u64, write: bool) -> Cause {
    if table::name_of(REGISTERS, number).is_none() {
        return Cause::Sysreg;
    }
    let (op0, op1, crn, crm, _) = parts(number);
    let is = |first: u64, last: u64| (first..=last).contains(&number);
    match (op0, op1, crn, crm) {
        // CNTP_TVAL_EL0 to CNTV_CVAL_EL0, CNTPS_*_EL1, and the hypervisor's own: CNTHP_*_EL2, CNTHV_*_EL2.
        (3, 3 | 4, 14, 2 | 3) | (3, 7, 14, 2) if write => Cause::TimerArm,
        (1 | 3, 4 | 5, ..) => Cause::NestedAncillary,
        // ICC_SGI1R_EL1, ICC_ASGI1R_EL1, ICC_SGI0R_EL1.
        (3, 0, 12, 11) if is(id(3, 0, 12, 11, 5), id(3, 0, 12, 11, 7)) => Cause::Ipi,
        // ICC_*_EL1 and ICC_PMR_EL1.
        (3, 0, 12, 8..=15) | (3, 0, 4, 6) => Cause::Apic,
        // PMUv3: PMINTENSET_EL1 and the like, PM*_EL0, PMEVCNTR<n>_EL0, PMEVTYPER<n>_EL0, PMCCFILTR_EL0.
        (3, 0, 9, 14) | (3, 3, 9, 12..=14) | (3, 3, 14, 8..=15) => Cause::Pmu,
        _ => Cause::Sysreg,
    }
}

macro_rules! registers {
    ($($op0:literal $op1:literal $crn:literal $crm:literal $op2:literal $name:ident),* $(,)?) => {
        const REGISTERS: &[(u64, &str)] =
            &[$((id($op0, $op1, $crn, $crm, $op2), stringify!($name))),*];
    };
}

registers! {
    1 0 7 1 0 IC_IALLUIS, 1 0 7 5 0 IC_IALLU, 1 0 7 6 1 DC_IVAC, 1 0 7 6 2 DC_ISW, 1 0 7 6 3 DC_IGVAC,
    1 0 7 6 4 DC_IGSW, 1 0 7 6 5 DC_IGDVAC, 1 0 7 6 6 DC_IGDSW, 1 0 7 8 0 AT_S1E1R, 1 0 7 8 1 AT_S1E1W,
    1 0 7 8 2 AT_S1E0R, 1 0 7 8 3 AT_S1E0W, 1 0 7 9 0 AT_S1E1RP, 1 0 7 9 1 AT_S1E1WP, 1 0 7 9 2 AT_S1E1A,
    1 0 7 10 2 DC_CSW, 1 0 7 10 4 DC_CGSW, 1 0 7 10 6 DC_CGDSW, 1 0 7 14 2 DC_CISW, 1 0 7 14 4 DC_CIGSW,
    1 0 7 14 6 DC_CIGDSW, 1 0 8 1 0 TLBI_VMALLE1OS, 1 0 8 1 1 TLBI_VAE1OS, 1 0 8 1 2 TLBI_ASIDE1OS,
    1 0 8 1 3 TLBI_VAAE1OS, 1 0 8 1 5 TLBI_VALE1OS, 1 0 8 1 7 TLBI_VAALE1OS, 1 0 8 2 1 TLBI_RVAE1IS,
    1 0 8 2 3 TLBI_RVAAE1IS, 1 0 8 2 5 TLBI_RVALE1IS, 1 0 8 2 7 TLBI_RVAALE1IS, 1 0 8 3 0 TLBI_VMALLE1IS,
    1 0 8 3 1 TLBI_VAE1IS, 1 0 8 3 2 TLBI_ASIDE1IS, 1 0 8 3 3 TLBI_VAAE1IS, 1 0 8 3 5 TLBI_VALE1IS,
    1 0 8 3 7 TLBI_VAALE1IS, 1 0 8 5 1 TLBI_RVAE1OS, 1 0 8 5 3 TLBI_RVAAE1OS, 1 0 8 5 5 TLBI_RVALE1OS,
    1 0 8 5 7 TLBI_RVAALE1OS, 1 0 8 6 1 TLBI_RVAE1, 1 0 8 6 3 TLBI_RVAAE1, 1 0 8 6 5 TLBI_RVALE1,
    1 0 8 6 7 TLBI_RVAALE1, 1 0 8 7 0 TLBI_VMALLE1, 1 0 8 7 1 TLBI_VAE1, 1 0 8 7 2 TLBI_ASIDE1, 1 0 8 7 3 TLBI_VAAE1,
    1 0 8 7 5 TLBI_VALE1, 1 0 8 7 7 TLBI_VAALE1, 1 3 7 3 4 CFP_RCTX, 1 3 7 3 5 DVP_RCTX, 1 3 7 3 6 COSP_RCTX,
    1 3 7 3 7 CPP_RCTX, 1 3 7 4 1 DC_ZVA, 1 3 7 4 3 DC_GVA, 1 3 7 4 4 DC_GZVA, 1 3 7 5 1 IC_IVAU, 1 3 7 10 1 DC_CVAC,
    1 3 7 10 3 DC_CGVAC, 1 3 7 10 5 DC_CGDVAC, 1 3 7 11 1 DC_CVAU, 1 3 7 12 1 DC_CVAP, 1 3 7 12 3 DC_CGVAP,
    1 3 7 12 5 DC_CGDVAP, 1 3 7 13 1 DC_CVADP, 1 3 7 13 3 DC_CGVADP, 1 3 7 13 5 DC_CGDVADP, 1 3 7 14 1 DC_CIVAC,
    1 3 7 14 3 DC_CIGVAC, 1 3 7 14 5 DC_CIGDVAC, 1 4 7 8 0 AT_S1E2R, 1 4 7 8 1 AT_S1E2W, 1 4 7 8 4 AT_S12E1R,
    1 4 7 8 5 AT_S12E1W, 1 4 7 8 6 AT_S12E0R, 1 4 7 8 7 AT_S12E0W, 1 4 7 9 2 AT_S1E2A, 1 4 8 0 1 TLBI_IPAS2E1IS,
    1 4 8 0 2 TLBI_RIPAS2E1IS, 1 4 8 0 5 TLBI_IPAS2LE1IS, 1 4 8 0 6 TLBI_RIPAS2LE1IS, 1 4 8 1 0 TLBI_ALLE2OS,
    1 4 8 1 1 TLBI_VAE2OS, 1 4 8 1 4 TLBI_ALLE1OS, 1 4 8 1 5 TLBI_VALE2OS, 1 4 8 1 6 TLBI_VMALLS12E1OS,
    1 4 8 2 1 TLBI_RVAE2IS, 1 4 8 2 5 TLBI_RVALE2IS, 1 4 8 3 0 TLBI_ALLE2IS, 1 4 8 3 1 TLBI_VAE2IS,
    1 4 8 3 4 TLBI_ALLE1IS, 1 4 8 3 5 TLBI_VALE2IS, 1 4 8 3 6 TLBI_VMALLS12E1IS, 1 4 8 4 0 TLBI_IPAS2E1OS,
    1 4 8 4 1 TLBI_IPAS2E1, 1 4 8 4 2 TLBI_RIPAS2E1, 1 4 8 4 3 TLBI_RIPAS2E1OS, 1 4 8 4 4 TLBI_IPAS2LE1OS,
    1 4 8 4 5 TLBI_IPAS2LE1, 1 4 8 4 6 TLBI_RIPAS2LE1, 1 4 8 4 7 TLBI_RIPAS2LE1OS, 1 4 8 5 1 TLBI_RVAE2OS,
    1 4 8 5 5 TLBI_RVALE2OS, 1 4 8 6 1 TLBI_RVAE2, 1 4 8 6 5 TLBI_RVALE2, 1 4 8 7 0 TLBI_ALLE2, 1 4 8 7 1 TLBI_VAE2,
    1 4 8 7 4 TLBI_ALLE1, 1 4 8 7 5 TLBI_VALE2, 1 4 8 7 6 TLBI_VMALLS12E1, 2 0 0 0 2 OSDTRRX_EL1,
    2 0 0 0 4 DBGBVR0_EL1, 2 0 0 0 5 DBGBCR0_EL1, 2 0 0 0 6 DBGWVR0_EL1, 2 0 0 0 7 DBGWCR0_EL1, 2 0 0 1 4 DBGBVR1_EL1,
    2 0 0 1 5 DBGBCR1_EL1, 2 0 0 1 6 DBGWVR1_EL1, 2 0 0 1 7 DBGWCR1_EL1, 2 0 0 2 0 MDCCINT_EL1, 2 0 0 2 2 MDSCR_EL1,
    2 0 0 2 4 DBGBVR2_EL1, 2 0 0 2 5 DBGBCR2_EL1, 2 0 0 2 6 DBGWVR2_EL1, 2 0 0 2 7 DBGWCR2_EL1, 2 0 0 3 2 OSDTRTX_EL1,
    2 0 0 3 4 DBGBVR3_EL1, 2 0 0 3 5 DBGBCR3_EL1, 2 0 0 3 6 DBGWVR3_EL1, 2 0 0 3 7 DBGWCR3_EL1, 2 0 0 4 4 DBGBVR4_EL1,
    2 0 0 4 5 DBGBCR4_EL1, 2 0 0 4 6 DBGWVR4_EL1, 2 0 0 4 7 DBGWCR4_EL1, 2 0 0 5 4 DBGBVR5_EL1, 2 0 0 5 5 DBGBCR5_EL1,
    2 0 0 5 6 DBGWVR5_EL1, 2 0 0 5 7 DBGWCR5_EL1, 2 0 0 6 2 OSECCR_EL1, 2 0 0 6 4 DBGBVR6_EL1, 2 0 0 6 5 DBGBCR6_EL1,
    2 0 0 6 6 DBGWVR6_EL1, 2 0 0 6 7 DBGWCR6_EL1, 2 0 0 7 4 DBGBVR7_EL1, 2 0 0 7 5 DBGBCR7_EL1, 2 0 0 7 6 DBGWVR7_EL1,
    2 0 0 7 7 DBGWCR7_EL1, 2 0 0 8 4 DBGBVR8_EL1, 2 0 0 8 5 DBGBCR8_EL1, 2 0 0 8 6 DBGWVR8_EL1, 2 0 0 8 7 DBGWCR8_EL1,
    2 0 0 9 4 DBGBVR9_EL1, 2 0 0 9 5 DBGBCR9_EL1, 2 0 0 9 6 DBGWVR9_EL1, 2 0 0 9 7 DBGWCR9_EL1,
    2 0 0 10 4 DBGBVR10_EL1, 2 0 0 10 5 DBGBCR10_EL1, 2 0 0 10 6 DBGWVR10_EL1, 2 0 0 10 7 DBGWCR10_EL1,
    2 0 0 11 4 DBGBVR11_EL1, 2 0 0 11 5 DBGBCR11_EL1, 2 0 0 11 6 DBGWVR11_EL1, 2 0 0 11 7 DBGWCR11_EL1,
    2 0 0 12 4 DBGBVR12_EL1, 2 0 0 12 5 DBGBCR12_EL1, 2 0 0 12 6 DBGWVR12_EL1, 2 0 0 12 7 DBGWCR12_EL1,
    2 0 0 13 4 DBGBVR13_EL1, 2 0 0 13 5 DBGBCR13_EL1, 2 0 0 13 6 DBGWVR13_EL1, 2 0 0 13 7 DBGWCR13_EL1,
    2 0 0 14 4 DBGBVR14_EL1, 2 0 0 14 5 DBGBCR14_EL1, 2 0 0 14 6 DBGWVR14_EL1, 2 0 0 14 7 DBGWCR14_EL1,
    2 0 0 15 4 DBGBVR15_EL1, 2 0 0 15 5 DBGBCR15_EL1, 2 0 0 15 6 DBGWVR15_EL1, 2 0 0 15 7 DBGWCR15_EL1,
    2 0 1 0 0 MDRAR_EL1, 2 0 1 0 4 OSLAR_EL1, 2 0 1 1 4 OSLSR_EL1, 2 0 1 3 4 OSDLR_EL1, 2 0 1 4 4 DBGPRCR_EL1,
    2 0 7 8 6 DBGCLAIMSET_EL1, 2 0 7 9 6 DBGCLAIMCLR_EL1, 2 0 7 14 6 DBGAUTHSTATUS_EL1, 2 3 0 1 0 MDCCSR_EL0,
    2 3 0 4 0 DBGDTR_EL0, 2 3 0 5 0 DBGDTRxX_EL0, 2 4 0 7 0 DBGVCR32_EL2, 3 0 0 0 0 MIDR_EL1, 3 0 0 0 5 MPIDR_EL1,
    3 0 0 0 6 REVIDR_EL1, 3 0 0 1 0 ID_PFR0_EL1, 3 0 0 1 1 ID_PFR1_EL1, 3 0 0 1 2 ID_DFR0_EL1, 3 0 0 1 3 ID_AFR0_EL1,
    3 0 0 1 4 ID_MMFR0_EL1, 3 0 0 1 5 ID_MMFR1_EL1, 3 0 0 1 6 ID_MMFR2_EL1, 3 0 0 1 7 ID_MMFR3_EL1,
    3 0 0 2 0 ID_ISAR0_EL1, 3 0 0 2 1 ID_ISAR1_EL1, 3 0 0 2 2 ID_ISAR2_EL1, 3 0 0 2 3 ID_ISAR3_EL1,
    3 0 0 2 4 ID_ISAR4_EL1, 3 0 0 2 5 ID_ISAR5_EL1, 3 0 0 2 6 ID_MMFR4_EL1, 3 0 0 2 7 ID_ISAR6_EL1,
    3 0 0 3 0 MVFR0_EL1, 3 0 0 3 1 MVFR1_EL1, 3 0 0 3 2 MVFR2_EL1, 3 0 0 3 4 ID_PFR2_EL1, 3 0 0 3 5 ID_DFR1_EL1,
    3 0 0 3 6 ID_MMFR5_EL1, 3 0 0 4 0 ID_AA64PFR0_EL1, 3 0 0 4 1 ID_AA64PFR1_EL1, 3 0 0 4 2 ID_AA64PFR2_EL1,
    3 0 0 4 4 ID_AA64ZFR0_EL1, 3 0 0 4 5 ID_AA64SMFR0_EL1, 3 0 0 4 7 ID_AA64FPFR0_EL1, 3 0 0 5 0 ID_AA64DFR0_EL1,
    3 0 0 5 1 ID_AA64DFR1_EL1, 3 0 0 5 4 ID_AA64AFR0_EL1, 3 0 0 5 5 ID_AA64AFR1_EL1, 3 0 0 6 0 ID_AA64ISAR0_EL1,
    3 0 0 6 1 ID_AA64ISAR1_EL1, 3 0 0 6 2 ID_AA64ISAR2_EL1, 3 0 0 6 3 ID_AA64ISAR3_EL1, 3 0 0 7 0 ID_AA64MMFR0_EL1,
    3 0 0 7 1 ID_AA64MMFR1_EL1, 3 0 0 7 2 ID_AA64MMFR2_EL1, 3 0 0 7 3 ID_AA64MMFR3_EL1, 3 0 0 7 4 ID_AA64MMFR4_EL1,
    3 0 1 0 0 SCTLR_EL1, 3 0 1 0 1 ACTLR_EL1, 3 0 1 0 2 CPACR_EL1, 3 0 1 0 5 RGSR_EL1, 3 0 1 0 6 GCR_EL1,
    3 0 1 2 0 ZCR_EL1, 3 0 1 2 1 TRFCR_EL1, 3 0 1 2 4 SMPRI_EL1, 3 0 1 2 6 SMCR_EL1, 3 0 2 0 0 TTBR0_EL1,
    3 0 2 0 1 TTBR1_EL1, 3 0 2 0 2 TCR_EL1, 3 0 2 0 3 TCR2_EL1, 3 0 2 1 0 APIAKEYLO_EL1, 3 0 2 1 1 APIAKEYHI_EL1,
    3 0 2 1 2 APIBKEYLO_EL1, 3 0 2 1 3 APIBKEYHI_EL1, 3 0 2 2 0 APDAKEYLO_EL1, 3 0 2 2 1 APDAKEYHI_EL1,
    3 0 2 2 2 APDBKEYLO_EL1, 3 0 2 2 3 APDBKEYHI_EL1, 3 0 2 3 0 APGAKEYLO_EL1, 3 0 2 3 1 APGAKEYHI_EL1,
    3 0 2 5 0 GCSCR_EL1, 3 0 2 5 1 GCSPR_EL1, 3 0 2 5 2 GCSCRE0_EL1, 3 0 4 0 0 SPSR_EL1, 3 0 4 0 1 ELR_EL1,
    3 0 4 2 2 CurrentEL, 3 0 4 3 0 ALLINT, 3 0 4 6 0 ICC_PMR_EL1, 3 0 5 1 0 AFSR0_EL1, 3 0 5 1 1 AFSR1_EL1,
    3 0 5 2 0 ESR_EL1, 3 0 5 3 0 ERRIDR_EL1, 3 0 5 3 1 ERRSELR_EL1, 3 0 5 4 0 ERXFR_EL1, 3 0 5 4 1 ERXCTLR_EL1,
    3 0 5 4 2 ERXSTATUS_EL1, 3 0 5 4 3 ERXADDR_EL1, 3 0 5 4 4 ERXPFGF_EL1, 3 0 5 4 5 ERXPFGCTL_EL1,
    3 0 5 4 6 ERXPFGCDN_EL1, 3 0 5 5 0 ERXMISC0_EL1, 3 0 5 5 1 ERXMISC1_EL1, 3 0 5 5 2 ERXMISC2_EL1,
    3 0 5 5 3 ERXMISC3_EL1, 3 0 5 6 0 TFSR_EL1, 3 0 5 6 1 TFSRE0_EL1, 3 0 6 0 0 FAR_EL1, 3 0 7 4 0 PAR_EL1,
    3 0 9 9 0 PMSCR_EL1, 3 0 9 9 1 PMSNEVFR_EL1, 3 0 9 9 2 PMSICR_EL1, 3 0 9 9 3 PMSIRR_EL1, 3 0 9 9 4 PMSFCR_EL1,
    3 0 9 9 5 PMSEVFR_EL1, 3 0 9 9 6 PMSLATFR_EL1, 3 0 9 9 7 PMSIDR_EL1, 3 0 9 10 0 PMBLIMITR_EL1,
    3 0 9 10 1 PMBPTR_EL1, 3 0 9 10 3 PMBSR_EL1, 3 0 9 10 7 PMBIDR_EL1, 3 0 9 11 0 TRBLIMITR_EL1,
    3 0 9 11 1 TRBPTR_EL1, 3 0 9 11 2 TRBBASER_EL1, 3 0 9 11 3 TRBSR_EL1, 3 0 9 11 4 TRBMAR_EL1,
    3 0 9 11 6 TRBTRG_EL1, 3 0 9 11 7 TRBIDR_EL1, 3 0 9 14 1 PMINTENSET_EL1, 3 0 9 14 2 PMINTENCLR_EL1,
    3 0 9 14 6 PMMIR_EL1, 3 0 10 2 0 MAIR_EL1, 3 0 10 2 1 MAIR2_EL1, 3 0 10 2 2 PIRE0_EL1, 3 0 10 2 3 PIR_EL1,
    3 0 10 2 4 POR_EL1, 3 0 10 2 5 S2POR_EL1, 3 0 10 3 0 AMAIR_EL1, 3 0 10 3 1 AMAIR2_EL1, 3 0 10 4 0 LORSA_EL1,
    3 0 10 4 1 LOREA_EL1, 3 0 10 4 2 LORN_EL1, 3 0 10 4 3 LORC_EL1, 3 0 10 4 7 LORID_EL1, 3 0 12 0 0 VBAR_EL1,
    3 0 12 1 0 ISR_EL1, 3 0 12 1 1 DISR_EL1, 3 0 12 8 0 ICC_IAR0_EL1, 3 0 12 8 1 ICC_EOIR0_EL1,
    3 0 12 8 2 ICC_HPPIR0_EL1, 3 0 12 8 3 ICC_BPR0_EL1, 3 0 12 8 4 ICC_AP0R0_EL1, 3 0 12 8 5 ICC_AP0R1_EL1,
    3 0 12 8 6 ICC_AP0R2_EL1, 3 0 12 8 7 ICC_AP0R3_EL1, 3 0 12 9 0 ICC_AP1R0_EL1, 3 0 12 9 1 ICC_AP1R1_EL1,
    3 0 12 9 2 ICC_AP1R2_EL1, 3 0 12 9 3 ICC_AP1R3_EL1, 3 0 12 9 5 ICC_NMIAR1_EL1, 3 0 12 11 1 ICC_DIR_EL1,
    3 0 12 11 3 ICC_RPR_EL1, 3 0 12 11 5 ICC_SGI1R_EL1, 3 0 12 11 6 ICC_ASGI1R_EL1, 3 0 12 11 7 ICC_SGI0R_EL1,
    3 0 12 12 0 ICC_IAR1_EL1, 3 0 12 12 1 ICC_EOIR1_EL1, 3 0 12 12 2 ICC_HPPIR1_EL1, 3 0 12 12 3 ICC_BPR1_EL1,
    3 0 12 12 4 ICC_CTLR_EL1, 3 0 12 12 5 ICC_SRE_EL1, 3 0 12 12 6 ICC_IGRPEN0_EL1, 3 0 12 12 7 ICC_IGRPEN1_EL1,
    3 0 13 0 1 CONTEXTIDR_EL1, 3 0 13 0 4 TPIDR_EL1, 3 0 13 0 5 ACCDATA_EL1, 3 0 13 0 7 SCXTNUM_EL1,
    3 0 14 1 0 CNTKCTL_EL1, 3 1 0 0 0 CCSIDR_EL1, 3 1 0 0 1 CLIDR_EL1, 3 1 0 0 2 CCSIDR2_EL1, 3 1 0 0 4 GMID_EL1,
    3 1 0 0 6 SMIDR_EL1, 3 1 0 0 7 AIDR_EL1, 3 2 0 0 0 CSSELR_EL1, 3 3 0 0 1 CTR_EL0, 3 3 0 0 7 DCZID_EL0,
    3 3 2 4 0 RNDR_EL0, 3 3 2 4 1 RNDRRS_EL0, 3 3 2 5 1 GCSPR_EL0, 3 3 4 2 2 SVCR, 3 3 4 4 2 FPMR,
    3 3 9 4 0 PMICNTR_EL0, 3 3 9 6 0 PMICFILTR_EL0, 3 3 9 12 0 PMCR_EL0, 3 3 9 12 1 PMCNTENSET_EL0,
    3 3 9 12 2 PMCNTENCLR_EL0, 3 3 9 12 3 PMOVSCLR_EL0, 3 3 9 12 4 PMSWINC_EL0, 3 3 9 12 5 PMSELR_EL0,
    3 3 9 12 6 PMCEID0_EL0, 3 3 9 12 7 PMCEID1_EL0, 3 3 9 13 0 PMCCNTR_EL0, 3 3 9 13 1 PMXEVTYPER_EL0,
    3 3 9 13 2 PMXEVCNTR_EL0, 3 3 9 14 0 PMUSERENR_EL0, 3 3 9 14 3 PMOVSSET_EL0, 3 3 10 2 4 POR_EL0,
    3 3 13 0 2 TPIDR_EL0, 3 3 13 0 3 TPIDRRO_EL0, 3 3 13 0 5 TPIDR2_EL0, 3 3 13 0 7 SCXTNUM_EL0, 3 3 13 2 0 AMCR_EL0,
    3 3 13 2 1 AMCFGR_EL0, 3 3 13 2 2 AMCGCR_EL0, 3 3 13 2 3 AMUSERENR_EL0, 3 3 13 2 4 AMCNTENCLR0_EL0,
    3 3 13 2 5 AMCNTENSET0_EL0, 3 3 13 3 0 AMCNTENCLR1_EL0, 3 3 13 3 1 AMCNTENSET1_EL0, 3 3 13 4 0 AMEVCNTR0_CORE_EL0,
    3 3 13 4 1 AMEVCNTR0_CONST_EL0, 3 3 13 4 2 AMEVCNTR0_INST_RET_EL0, 3 3 13 4 3 AMEVCNTR0_MEM_STALL,
    3 3 14 0 0 CNTFRQ_EL0, 3 3 14 0 1 CNTPCT_EL0, 3 3 14 0 2 CNTVCT_EL0, 3 3 14 0 5 CNTPCTSS_EL0,
    3 3 14 0 6 CNTVCTSS_EL0, 3 3 14 2 0 CNTP_TVAL_EL0, 3 3 14 2 1 CNTP_CTL_EL0, 3 3 14 2 2 CNTP_CVAL_EL0,
    3 3 14 3 0 CNTV_TVAL_EL0, 3 3 14 3 1 CNTV_CTL_EL0, 3 3 14 3 2 CNTV_CVAL_EL0, 3 3 14 8 0 PMEVCNTR0_EL0,
    3 3 14 8 1 PMEVCNTR1_EL0, 3 3 14 8 2 PMEVCNTR2_EL0, 3 3 14 8 3 PMEVCNTR3_EL0, 3 3 14 8 4 PMEVCNTR4_EL0,
    3 3 14 8 5 PMEVCNTR5_EL0, 3 3 14 8 6 PMEVCNTR6_EL0, 3 3 14 8 7 PMEVCNTR7_EL0, 3 3 14 9 0 PMEVCNTR8_EL0,
    3 3 14 9 1 PMEVCNTR9_EL0, 3 3 14 9 2 PMEVCNTR10_EL0, 3 3 14 9 3 PMEVCNTR11_EL0, 3 3 14 9 4 PMEVCNTR12_EL0,
    3 3 14 9 5 PMEVCNTR13_EL0, 3 3 14 9 6 PMEVCNTR14_EL0, 3 3 14 9 7 PMEVCNTR15_EL0, 3 3 14 10 0 PMEVCNTR16_EL0,
    3 3 14 10 1 PMEVCNTR17_EL0, 3 3 14 10 2 PMEVCNTR18_EL0, 3 3 14 10 3 PMEVCNTR19_EL0, 3 3 14 10 4 PMEVCNTR20_EL0,
    3 3 14 10 5 PMEVCNTR21_EL0, 3 3 14 10 6 PMEVCNTR22_EL0, 3 3 14 10 7 PMEVCNTR23_EL0, 3 3 14 11 0 PMEVCNTR24_EL0,
    3 3 14 11 1 PMEVCNTR25_EL0, 3 3 14 11 2 PMEVCNTR26_EL0, 3 3 14 11 3 PMEVCNTR27_EL0, 3 3 14 11 4 PMEVCNTR28_EL0,
    3 3 14 11 5 PMEVCNTR29_EL0, 3 3 14 11 6 PMEVCNTR30_EL0, 3 3 14 12 0 PMEVTYPER0_EL0, 3 3 14 12 1 PMEVTYPER1_EL0,
    3 3 14 12 2 PMEVTYPER2_EL0, 3 3 14 12 3 PMEVTYPER3_EL0, 3 3 14 12 4 PMEVTYPER4_EL0, 3 3 14 12 5 PMEVTYPER5_EL0,
    3 3 14 12 6 PMEVTYPER6_EL0, 3 3 14 12 7 PMEVTYPER7_EL0, 3 3 14 13 0 PMEVTYPER8_EL0, 3 3 14 13 1 PMEVTYPER9_EL0,
    3 3 14 13 2 PMEVTYPER10_EL0, 3 3 14 13 3 PMEVTYPER11_EL0, 3 3 14 13 4 PMEVTYPER12_EL0,
    3 3 14 13 5 PMEVTYPER13_EL0, 3 3 14 13 6 PMEVTYPER14_EL0, 3 3 14 13 7 PMEVTYPER15_EL0,
    3 3 14 14 0 PMEVTYPER16_EL0, 3 3 14 14 1 PMEVTYPER17_EL0, 3 3 14 14 2 PMEVTYPER18_EL0,
    3 3 14 14 3 PMEVTYPER19_EL0, 3 3 14 14 4 PMEVTYPER20_EL0, 3 3 14 14 5 PMEVTYPER21_EL0,
    3 3 14 14 6 PMEVTYPER22_EL0, 3 3 14 14 7 PMEVTYPER23_EL0, 3 3 14 15 0 PMEVTYPER24_EL0,
    3 3 14 15 1 PMEVTYPER25_EL0, 3 3 14 15 2 PMEVTYPER26_EL0, 3 3 14 15 3 PMEVTYPER27_EL0,
    3 3 14 15 4 PMEVTYPER28_EL0, 3 3 14 15 5 PMEVTYPER29_EL0, 3 3 14 15 6 PMEVTYPER30_EL0, 3 3 14 15 7 PMCCFILTR_EL0,
    3 4 0 0 0 VPIDR_EL2, 3 4 0 0 5 VMPIDR_EL2, 3 4 1 0 0 SCTLR_EL2, 3 4 1 0 1 ACTLR_EL2, 3 4 1 0 3 SCTLR2_EL2,
    3 4 1 1 0 HCR_EL2, 3 4 1 1 1 MDCR_EL2, 3 4 1 1 2 CPTR_EL2, 3 4 1 1 3 HSTR_EL2, 3 4 1 1 4 HFGRTR_EL2,
    3 4 1 1 5 HFGWTR_EL2, 3 4 1 1 6 HFGITR_EL2, 3 4 1 1 7 HACR_EL2, 3 4 1 2 0 ZCR_EL2, 3 4 1 2 1 TRFCR_EL2,
    3 4 1 2 2 HCRX_EL2, 3 4 1 2 5 SMPRIMAP_EL2, 3 4 1 2 6 SMCR_EL2, 3 4 2 0 0 TTBR0_EL2, 3 4 2 0 1 TTBR1_EL2,
    3 4 2 0 2 TCR_EL2, 3 4 2 0 3 TCR2_EL2, 3 4 2 1 0 VTTBR_EL2, 3 4 2 1 2 VTCR_EL2, 3 4 2 2 0 VNCR_EL2,
    3 4 2 5 0 GCSCR_EL2, 3 4 2 5 1 GCSPR_EL2, 3 4 3 0 0 DACR32_EL2, 3 4 3 1 0 HDFGRTR2_EL2, 3 4 3 1 1 HDFGWTR2_EL2,
    3 4 3 1 2 HFGRTR2_EL2, 3 4 3 1 3 HFGWTR2_EL2, 3 4 3 1 4 HDFGRTR_EL2, 3 4 3 1 5 HDFGWTR_EL2, 3 4 3 1 6 HAFGRTR_EL2,
    3 4 3 1 7 HFGITR2_EL2, 3 4 4 0 0 SPSR_EL2, 3 4 4 0 1 ELR_EL2, 3 4 4 1 0 SP_EL1, 3 4 4 3 0 SPSR_irq,
    3 4 4 3 1 SPSR_abt, 3 4 4 3 2 SPSR_und, 3 4 4 3 3 SPSR_fiq, 3 4 5 0 1 IFSR32_EL2, 3 4 5 1 0 AFSR0_EL2,
    3 4 5 1 1 AFSR1_EL2, 3 4 5 2 0 ESR_EL2, 3 4 5 2 3 VSESR_EL2, 3 4 5 3 0 FPEXC32_EL2, 3 4 5 6 0 TFSR_EL2,
    3 4 6 0 0 FAR_EL2, 3 4 6 0 4 HPFAR_EL2, 3 4 9 9 0 PMSCR_EL2, 3 4 10 1 1 MAIR2_EL2, 3 4 10 2 0 MAIR_EL2,
    3 4 10 2 3 PIR_EL2, 3 4 10 2 5 S2PIR_EL2, 3 4 10 3 0 AMAIR_EL2, 3 4 10 3 1 AMAIR2_EL2, 3 4 10 4 0 MPAMHCR_EL2,
    3 4 10 4 1 MPAMVPMV_EL2, 3 4 10 5 0 MPAM2_EL2, 3 4 10 6 0 MPAMVPM0_EL2, 3 4 10 6 1 MPAMVPM1_EL2,
    3 4 10 6 2 MPAMVPM2_EL2, 3 4 10 6 3 MPAMVPM3_EL2, 3 4 10 6 4 MPAMVPM4_EL2, 3 4 10 6 5 MPAMVPM5_EL2,
    3 4 10 6 6 MPAMVPM6_EL2, 3 4 10 6 7 MPAMVPM7_EL2, 3 4 12 0 0 VBAR_EL2, 3 4 12 0 1 RVBAR_EL2, 3 4 12 0 2 RMR_EL2,
    3 4 12 1 1 VDISR_EL2, 3 4 12 8 0 ICH_AP0R0_EL2, 3 4 12 8 1 ICH_AP0R1_EL2, 3 4 12 8 2 ICH_AP0R2_EL2,
    3 4 12 8 3 ICH_AP0R3_EL2, 3 4 12 9 0 ICH_AP1R0_EL2, 3 4 12 9 1 ICH_AP1R1_EL2, 3 4 12 9 2 ICH_AP1R2_EL2,
    3 4 12 9 3 ICH_AP1R3_EL2, 3 4 12 9 4 ICH_VSEIR_EL2, 3 4 12 9 5 ICC_SRE_EL2, 3 4 12 11 0 ICH_HCR_EL2,
    3 4 12 11 1 ICH_VTR_EL2, 3 4 12 11 2 ICH_MISR_EL2, 3 4 12 11 3 ICH_EISR_EL2, 3 4 12 11 5 ICH_ELRSR_EL2,
    3 4 12 11 7 ICH_VMCR_EL2, 3 4 12 12 0 ICH_LR0_EL2, 3 4 12 12 1 ICH_LR1_EL2, 3 4 12 12 2 ICH_LR2_EL2,
    3 4 12 12 3 ICH_LR3_EL2, 3 4 12 12 4 ICH_LR4_EL2, 3 4 12 12 5 ICH_LR5_EL2, 3 4 12 12 6 ICH_LR6_EL2,
    3 4 12 12 7 ICH_LR7_EL2, 3 4 12 13 0 ICH_LR8_EL2, 3 4 12 13 1 ICH_LR9_EL2, 3 4 12 13 2 ICH_LR10_EL2,
    3 4 12 13 3 ICH_LR11_EL2, 3 4 12 13 4 ICH_LR12_EL2, 3 4 12 13 5 ICH_LR13_EL2, 3 4 12 13 6 ICH_LR14_EL2,
    3 4 12 13 7 ICH_LR15_EL2, 3 4 13 0 1 CONTEXTIDR_EL2, 3 4 13 0 2 TPIDR_EL2, 3 4 13 0 7 SCXTNUM_EL2,
    3 4 14 0 3 CNTVOFF_EL2, 3 4 14 0 6 CNTPOFF_EL2, 3 4 14 1 0 CNTHCTL_EL2, 3 4 14 2 0 CNTHP_TVAL_EL2,
    3 4 14 2 1 CNTHP_CTL_EL2, 3 4 14 2 2 CNTHP_CVAL_EL2, 3 4 14 3 0 CNTHV_TVAL_EL2, 3 4 14 3 1 CNTHV_CTL_EL2,
    3 4 14 3 2 CNTHV_CVAL_EL2, 3 5 1 0 0 SCTLR_EL12, 3 5 1 0 2 CPACR_EL12, 3 5 1 0 3 SCTLR2_EL12, 3 5 1 2 0 ZCR_EL12,
    3 5 1 2 1 TRFCR_EL12, 3 5 1 2 6 SMCR_EL12, 3 5 2 0 0 TTBR0_EL12, 3 5 2 0 1 TTBR1_EL12, 3 5 2 0 2 TCR_EL12,
    3 5 2 0 3 TCR2_EL12, 3 5 2 5 0 GCSCR_EL12, 3 5 2 5 1 GCSPR_EL12, 3 5 4 0 0 SPSR_EL12, 3 5 4 0 1 ELR_EL12,
    3 5 5 1 0 AFSR0_EL12, 3 5 5 1 1 AFSR1_EL12, 3 5 5 2 0 ESR_EL12, 3 5 5 6 0 TFSR_EL12, 3 5 6 0 0 FAR_EL12,
    3 5 9 9 0 PMSCR_EL12, 3 5 10 2 0 MAIR_EL12, 3 5 10 2 2 PIRE0_EL12, 3 5 10 2 3 PIR_EL12, 3 5 10 2 4 POR_EL12,
    3 5 10 3 0 AMAIR_EL12, 3 5 12 0 0 VBAR_EL12, 3 5 13 0 1 CONTEXTIDR_EL12, 3 5 13 0 7 SCXTNUM_EL12,
    3 5 14 1 0 CNTKCTL_EL12, 3 5 14 2 0 CNTP_TVAL_EL02, 3 5 14 2 1 CNTP_CTL_EL02, 3 5 14 2 2 CNTP_CVAL_EL02,
    3 5 14 3 0 CNTV_TVAL_EL02, 3 5 14 3 1 CNTV_CTL_EL02, 3 5 14 3 2 CNTV_CVAL_EL02, 3 6 4 1 0 SP_EL2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_sorted_and_named_once() {
        table::check::one_to_one(REGISTERS);
    }

    /// Syndromes of the recordings below `captures/arm64`, and what `kvm_sys_access` says behind them.
    #[test]
    fn syndromes() {
        for (esr, label, write) in [
            (0x6235_7aa6, "S3_5_C14_C3_2 CNTV_CVAL_EL02", true),
            (0x6224_0085, "S2_0_C0_C2_2 MDSCR_EL1", false),
            (0x6224_0024, "S2_0_C0_C2_2 MDSCR_EL1", true),
            (0x6235_3017, "S3_4_C12_C11_2 ICH_MISR_EL2", false),
            (0x6239_1801, "S3_4_C6_C0_4 HPFAR_EL2", false),
        ] {
            let (id, is_write) = of_syndrome(esr);
            assert_eq!((super::label(id).as_str(), is_write), (label, write), "{esr:#x}");
        }
        assert_eq!(label(id(3, 0, 15, 2, 0)), "S3_0_C15_C2_0");
        assert_eq!(label(1 << 16), "0x10000");
        assert_eq!(name(id(3, 4, 12, 11, 2)), "ICH_MISR_EL2");
        assert_eq!(name(id(3, 0, 15, 2, 0)), "S3_0_C15_C2_0");
        assert!(is_instruction(id(1, 4, 8, 7, 4)) && !is_instruction(id(3, 4, 12, 11, 2)));
    }

    #[test]
    fn causes() {
        use Cause as C;
        for (number, on_read, on_write) in [
            (id(3, 3, 14, 3, 2), C::Sysreg, C::TimerArm),
            (id(3, 3, 14, 2, 1), C::Sysreg, C::TimerArm),
            (id(3, 3, 14, 0, 1), C::Sysreg, C::Sysreg),
            (id(3, 4, 14, 2, 1), C::NestedAncillary, C::TimerArm),
            (id(3, 5, 14, 3, 2), C::NestedAncillary, C::NestedAncillary),
            (id(3, 0, 12, 11, 5), C::Ipi, C::Ipi),
            (id(3, 0, 12, 11, 1), C::Apic, C::Apic),
            (id(3, 0, 4, 6, 0), C::Apic, C::Apic),
            (id(3, 3, 9, 13, 0), C::Pmu, C::Pmu),
            (id(3, 3, 14, 12, 0), C::Pmu, C::Pmu),
            (id(3, 0, 0, 4, 0), C::Sysreg, C::Sysreg),
            (id(1, 0, 8, 7, 0), C::Sysreg, C::Sysreg),
            (id(1, 4, 8, 7, 4), C::NestedAncillary, C::NestedAncillary),
            (id(2, 0, 0, 2, 2), C::Sysreg, C::Sysreg),
        ] {
            assert_eq!(
                (cause(number, false), cause(number, true)),
                (on_read, on_write),
                "{}",
                label(number)
            );
        }
    }
}
