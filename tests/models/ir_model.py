"""An OpenVINO IR model, written by hand: OUT = IN + [10, 20, 30, 40] for f32[-1,4]."""
import struct

IR_BIN = struct.pack("<4f", 10, 20, 30, 40)

IR_XML = b"""<?xml version="1.0"?>
<net name="ir_add" version="11">
    <layers>
        <layer id="0" name="IN" type="Parameter" version="opset1">
            <data shape="?,4" element_type="f32"/>
            <output>
                <port id="0" precision="FP32" names="IN"><dim>-1</dim><dim>4</dim></port>
            </output>
        </layer>
        <layer id="1" name="addend" type="Const" version="opset1">
            <data element_type="f32" shape="1,4" offset="0" size="16"/>
            <output>
                <port id="0" precision="FP32"><dim>1</dim><dim>4</dim></port>
            </output>
        </layer>
        <layer id="2" name="sum" type="Add" version="opset1">
            <data auto_broadcast="numpy"/>
            <input>
                <port id="0" precision="FP32"><dim>-1</dim><dim>4</dim></port>
                <port id="1" precision="FP32"><dim>1</dim><dim>4</dim></port>
            </input>
            <output>
                <port id="2" precision="FP32" names="OUT"><dim>-1</dim><dim>4</dim></port>
            </output>
        </layer>
        <layer id="3" name="result" type="Result" version="opset1">
            <input>
                <port id="0" precision="FP32"><dim>-1</dim><dim>4</dim></port>
            </input>
        </layer>
    </layers>
    <edges>
        <edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
        <edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
        <edge from-layer="2" from-port="2" to-layer="3" to-port="0"/>
    </edges>
</net>
"""
