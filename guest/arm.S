# Executes the instruction that makes powerfail.c start watching, and exits.
.globl _start
_start:
    nopl 0x42524146(%rax)
    mov $60, %eax
    xor %edi, %edi
    syscall
.section .note.GNU-stack, "", @progbits
