"""What Vulkan devices there are: the instance, descriptions of physical devices, and the choice among them."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx_vulkan.device.api import FeatureBlock, chain, check, load
from onnx_vulkan.errors import DeviceError

__all__ = ["CoopMatrix", "DeviceInfo", "Heap", "Instance", "Limits", "choose"]

KINDS = {1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}
PREFERENCE = ["discrete", "integrated", "virtual", "other", "cpu"]
NEEDED = (1, 3, 0)  # the GLSL compiler emits SPIR-V 1.6, which came with Vulkan 1.3
LAYER = "VK_LAYER_KHRONOS_validation"
WITHOUT = "ONNX_VULKAN_WITHOUT"  # for tests: names of features that the devices then do not have

NO_DEVICE = (
    "The Vulkan loader found no device. Install the GPU's Vulkan driver, or `apt install mesa-vulkan-drivers` for a software "
    "device (right answers, not speed). `vulkaninfo --summary` shows what the loader sees; VK_DRIVER_FILES says where it looks."
)


@dataclass(frozen=True)
class Limits:
    """Device limits that choices of kernels depend on (bytes and counts)."""

    shared_memory: int
    workgroup_invocations: int
    workgroup_size: tuple[int, int, int]
    workgroup_count: tuple[int, int, int]
    push_constants: int
    max_allocation: int
    max_buffer: int
    subgroup_size: int
    subgroup_min: int
    subgroup_max: int

    @property
    def largest_piece(self) -> int:
        """The most bytes that one allocation, and the buffer in it, may have."""
        return min(self.max_allocation, self.max_buffer)

    @property
    def largest_piece_name(self) -> str:
        """Which limit of the device that is."""
        return "maxBufferSize" if self.max_buffer < self.max_allocation else "maxMemoryAllocationSize"


@dataclass(frozen=True)
class Heap:
    size: int
    device_local: bool


@dataclass(frozen=True)
class CoopMatrix:
    """One shape of VK_KHR_cooperative_matrix at subgroup scope; types are ``f16 f32 f64 s8 u8 s32 u32 bf16 ...``."""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    result: str
    saturating: bool


@dataclass(frozen=True)
class DeviceInfo:
    """A physical device, described without opening it.

    ``features``: names of ours, see ``_features``. ``unusable``: why it cannot run us, or "".
    ``kind`` is discrete, integrated, virtual, cpu or other.
    """

    index: int
    name: str
    uuid: str
    vendor_id: int
    device_id: int
    driver: str
    driver_version: int
    api_version: tuple[int, int, int]
    kind: str
    limits: Limits
    features: frozenset[str]
    coop_matrices: tuple[CoopMatrix, ...]
    heaps: tuple[Heap, ...]
    timestamp_period: float
    timestamp_bits: int
    queue_family: int
    direct_input: bool
    unusable: str
    extensions: frozenset[str] = field(repr=False)
    handle: Any = field(repr=False, compare=False)

    def __str__(self) -> str:
        api = ".".join(map(str, self.api_version))
        return f"[{self.index}] {self.name} ({self.kind}, {self.driver}, Vulkan {api}, uuid {self.uuid})"


class Instance:
    """The process's VkInstance, made on first use. ``forked``: the process that this one was forked from had one too."""

    _lock = threading.Lock()
    _current: Instance | None = None

    @classmethod
    def get(cls) -> Instance:
        with cls._lock:
            if cls._current is None or cls._current.pid != os.getpid():  # a forked child makes its own
                forked = cls._current is not None
                cls._current = Instance()
                cls._current.forked = forked
            return cls._current

    def __init__(self) -> None:
        vk = load()
        ffi, lib = vk.ffi, vk.lib
        self.pid = os.getpid()
        self.forked = False
        self.messages: list[str] = []
        self.validation = os.environ.get("ONNX_VULKAN_VALIDATION", "") not in ("", "0")
        version = ffi.new("uint32_t *")
        lib.vkEnumerateInstanceVersion(version)
        if _version(version[0]) < NEEDED:
            raise DeviceError("The Vulkan loader is older than Vulkan 1.3; update it (package libvulkan1).")
        name = ffi.new("char[]", b"onnx-vulkan")
        app = ffi.new(
            "VkApplicationInfo *", {"sType": 0, "pEngineName": name, "apiVersion": NEEDED[0] << 22 | NEEDED[1] << 12 | NEEDED[2]}
        )
        layers, extensions, following = [], [], ffi.NULL
        if self.validation:
            if LAYER not in _layers():
                raise DeviceError(
                    f"ONNX_VULKAN_VALIDATION=1 asks for {LAYER}, which the Vulkan loader does not find. Install it "
                    "(`apt install vulkan-validationlayers`), or unset the variable."
                )
            layers.append(ffi.new("char[]", LAYER.encode()))
            extensions += [ffi.new("char[]", b"VK_EXT_debug_utils"), ffi.new("char[]", b"VK_EXT_validation_features")]
            enabled = ffi.new("VkValidationFeatureEnableEXT[]", [vk.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT])
            validation = ffi.new(
                "VkValidationFeaturesEXT *",
                {
                    "sType": vk.VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                    "enabledValidationFeatureCount": 1,
                    "pEnabledValidationFeatures": enabled,
                },
            )
            following = ffi.cast("void *", validation)
        layer_names, extension_names = ffi.new("char *[]", layers), ffi.new("char *[]", extensions)
        create = ffi.new(
            "VkInstanceCreateInfo *",
            {
                "sType": vk.VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                "pNext": following,
                "pApplicationInfo": app,
                "enabledLayerCount": len(layers),
                "ppEnabledLayerNames": layer_names,
                "enabledExtensionCount": len(extensions),
                "ppEnabledExtensionNames": extension_names,
            },
        )
        out = ffi.new("VkInstance *")
        result = lib.vkCreateInstance(create, ffi.NULL, out)
        if result == vk.VK_ERROR_INCOMPATIBLE_DRIVER:
            raise DeviceError(NO_DEVICE)
        check(result, "vkCreateInstance")
        self.handle = out[0]
        if self.validation:
            self._listen()

    def function(self, name: str, kind: str) -> Any:
        """An instance-level function that the loader does not export by name."""
        vk = load()
        return vk.ffi.cast(kind, vk.lib.vkGetInstanceProcAddr(self.handle, vk.ffi.new("char[]", name.encode())))

    def _listen(self) -> None:
        vk = load()
        ffi = vk.ffi

        def hear(severity: int, kind: int, data: Any, user: Any) -> int:
            if len(self.messages) < 1000:
                self.messages.append(ffi.string(data.pMessage).decode(errors="replace"))
            return 0

        self._callback = ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", hear)
        create = ffi.new(
            "VkDebugUtilsMessengerCreateInfoEXT *",
            {
                "sType": vk.VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
                "messageSeverity": 0x1100,  # warnings and errors
                "messageType": 0x6,  # validation and performance
                "pfnUserCallback": self._callback,
            },
        )
        out = ffi.new("VkDebugUtilsMessengerEXT *")
        make = self.function("vkCreateDebugUtilsMessengerEXT", "PFN_vkCreateDebugUtilsMessengerEXT")
        check(make(self.handle, create, ffi.NULL, out), "vkCreateDebugUtilsMessengerEXT")

    @functools.cached_property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """All physical devices, in the loader's order."""
        vk = load()
        ffi, lib = vk.ffi, vk.lib
        count = ffi.new("uint32_t *")
        check(lib.vkEnumeratePhysicalDevices(self.handle, count, ffi.NULL), "vkEnumeratePhysicalDevices")
        handles = ffi.new("VkPhysicalDevice[]", max(1, count[0]))
        check(lib.vkEnumeratePhysicalDevices(self.handle, count, handles), "vkEnumeratePhysicalDevices")
        return tuple(_describe(self, i, handles[i]) for i in range(count[0]))


def _version(packed: int) -> tuple[int, int, int]:
    return packed >> 22 & 0x7F, packed >> 12 & 0x3FF, packed & 0xFFF


def _layers() -> set[str]:
    vk = load()
    ffi, lib = vk.ffi, vk.lib
    count = ffi.new("uint32_t *")
    lib.vkEnumerateInstanceLayerProperties(count, ffi.NULL)
    layers = ffi.new("VkLayerProperties[]", max(1, count[0]))
    lib.vkEnumerateInstanceLayerProperties(count, layers)
    return {ffi.string(layers[i].layerName).decode() for i in range(count[0])}


# Structures of extensions: extension, VkStructureType, booleans in order.
EXTENSION_FEATURES: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("VK_KHR_cooperative_matrix", 1000506000, ("cooperativeMatrix", "cooperativeMatrixRobustBufferAccess")),
    (
        "VK_KHR_shader_bfloat16",
        1000141000,
        ("shaderBFloat16Type", "shaderBFloat16DotProduct", "shaderBFloat16CooperativeMatrix"),
    ),
    (
        "VK_NV_cooperative_matrix2",
        1000593000,
        (
            "cooperativeMatrixWorkgroupScope",
            "cooperativeMatrixFlexibleDimensions",
            "cooperativeMatrixReductions",
            "cooperativeMatrixConversions",
            "cooperativeMatrixPerElementOperations",
            "cooperativeMatrixTensorAddressing",
            "cooperativeMatrixBlockLoads",
        ),
    ),
)
# Vulkan feature -> our name.
NAMES = {
    "shaderFloat16": "f16",
    "shaderFloat64": "f64",
    "shaderInt8": "i8",
    "shaderInt16": "i16",
    "shaderInt64": "i64",
    "storageBuffer8BitAccess": "storage8",
    "storageBuffer16BitAccess": "storage16",
    "shaderBufferInt64Atomics": "atomic_i64",
    "shaderIntegerDotProduct": "int_dot",
    "cooperativeMatrix": "coop_matrix",
    "cooperativeMatrixWorkgroupScope": "coop_matrix2",
    "shaderBFloat16Type": "bf16",
    "shaderBFloat16CooperativeMatrix": "bf16_coop_matrix",
    "subgroupSizeControl": "subgroup_size_control",
    "computeFullSubgroups": "full_subgroups",
    "maintenance4": "maintenance4",
    "vulkanMemoryModel": "memory_model",
    "vulkanMemoryModelDeviceScope": "memory_model_device_scope",
    "scalarBlockLayout": "scalar_layout",
    "synchronization2": "synchronization2",
}
REQUIRED = ("bufferDeviceAddress", "timelineSemaphore", "scalarBlockLayout")
# What the name coop_matrix2 promises.
COOP_MATRIX2 = tuple(
    f"cooperativeMatrix{what}"
    for what in (
        "WorkgroupScope",
        "FlexibleDimensions",
        "Reductions",
        "Conversions",
        "PerElementOperations",
        "TensorAddressing",
    )
)
# What is switched on when it is there.
WANTED = set(NAMES) | set(REQUIRED) | {"shaderSharedInt64Atomics", "cooperativeMatrixFlexibleDimensions"}
WANTED |= {n for e, _, names in EXTENSION_FEATURES if e == "VK_NV_cooperative_matrix2" for n in names}
SUBGROUP_OPERATIONS = {
    0: "subgroup_basic",
    1: "subgroup_vote",
    2: "subgroup_arithmetic",
    3: "subgroup_ballot",
    4: "subgroup_shuffle",
    5: "subgroup_shuffle_relative",
    6: "subgroup_clustered",
}


# Kinds of matrix units that kernels use: type of operands, of sums, and K of a 16 x 16 x K product. The kernels count on one
# size of subgroups, so a driver that may choose among several has to let itself be told.
MATRIX_UNITS = {"coop_f16": ("f16", "f32", 16), "coop_s8": ("s8", "s32", 32), "coop_u8": ("u8", "u32", 32)}
UNIT_MAP = "coop_rows"
"""The feature that an opened device has where :mod:`onnx_vulkan.device.unit_map` found the map that kernels know."""


def hidden_features() -> frozenset[str]:
    """Our names of the features that ``ONNX_VULKAN_WITHOUT`` (a comma list) hides. Raises DeviceError for a name that is none."""
    hidden = frozenset(filter(None, (part.strip() for part in os.environ.get(WITHOUT, "").split(","))))
    known = {*NAMES.values(), *SUBGROUP_OPERATIONS.values(), *MATRIX_UNITS, UNIT_MAP, "int_dot_fast"}
    known |= {f"{what}_f{bits}" for what in ("nan_preserve", "denorm_preserve", "rte") for bits in (16, 32, 64)}
    unknown = sorted(hidden - known)
    if unknown:
        raise DeviceError(f"{WITHOUT} names {', '.join(unknown)}; the features are {', '.join(sorted(known))}.")
    return hidden


def wanted_features() -> frozenset[str]:
    """The Vulkan features to switch on where a device has them."""
    hidden = hidden_features()
    return frozenset(WANTED) - {theirs for theirs, ours in NAMES.items() if ours in hidden}


def feature_blocks(extensions: frozenset[str]) -> list[FeatureBlock]:
    """The feature structures that a device with these extensions knows; the first is VkPhysicalDeviceFeatures2."""
    vk = load()
    core = [f for f, _ in vk.ffi.typeof("VkPhysicalDeviceFeatures").fields]
    blocks = [
        FeatureBlock(vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, tuple(core)),
        FeatureBlock.known("VkPhysicalDeviceVulkan11Features", vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES),
        FeatureBlock.known("VkPhysicalDeviceVulkan12Features", vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES),
        FeatureBlock.known("VkPhysicalDeviceVulkan13Features", vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES),
    ]
    return blocks + [FeatureBlock(kind, names) for extension, kind, names in EXTENSION_FEATURES if extension in extensions]


def enabled_extensions(extensions: frozenset[str]) -> list[str]:
    """Which of a device's extensions are switched on."""
    wanted = [e for e, _, _ in EXTENSION_FEATURES] + ["VK_EXT_memory_budget"]
    return [e for e in wanted if e in extensions]


def _extensions(device: Any) -> frozenset[str]:
    vk = load()
    ffi, lib = vk.ffi, vk.lib
    count = ffi.new("uint32_t *")
    check(lib.vkEnumerateDeviceExtensionProperties(device, ffi.NULL, count, ffi.NULL), "vkEnumerateDeviceExtensionProperties")
    found = ffi.new("VkExtensionProperties[]", max(1, count[0]))
    check(lib.vkEnumerateDeviceExtensionProperties(device, ffi.NULL, count, found), "vkEnumerateDeviceExtensionProperties")
    return frozenset(ffi.string(found[i].extensionName).decode() for i in range(count[0]))


def _describe(instance: Instance, index: int, device: Any) -> DeviceInfo:
    vk = load()
    ffi, lib = vk.ffi, vk.lib
    first = ffi.new("VkPhysicalDeviceProperties *")
    lib.vkGetPhysicalDeviceProperties(device, first)
    name = ffi.string(first.deviceName).decode(errors="replace")
    api = _version(first.apiVersion)
    kind = KINDS.get(first.deviceType, "other")
    extensions = _extensions(device)
    if api < NEEDED:
        return _unusable(index, name, api, kind, device, f"it has Vulkan {api[0]}.{api[1]}; 1.3 is needed (update its driver)")

    v11 = ffi.new("VkPhysicalDeviceVulkan11Properties *", {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES})
    v12 = ffi.new("VkPhysicalDeviceVulkan12Properties *", {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES})
    v13 = ffi.new("VkPhysicalDeviceVulkan13Properties *", {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES})
    properties = ffi.new("VkPhysicalDeviceProperties2 *", {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2})
    properties.pNext, v11.pNext, v12.pNext = v11, v12, v13
    lib.vkGetPhysicalDeviceProperties2(device, properties)
    limits = properties.properties.limits

    blocks = feature_blocks(extensions)
    lib.vkGetPhysicalDeviceFeatures2(device, ffi.cast("VkPhysicalDeviceFeatures2 *", chain(blocks)))
    hidden = hidden_features()
    present = {n for b in blocks for n in b.names if b[n] and NAMES.get(n) not in hidden}
    features = {ours for theirs, ours in NAMES.items() if theirs in present}
    if not present.issuperset(COOP_MATRIX2):
        features.discard("coop_matrix2")
    compute = 0x20
    if not v13.requiredSubgroupSizeStages & compute:
        features.discard("subgroup_size_control")
    for bits in (16, 32, 64):
        if getattr(v12, f"shaderSignedZeroInfNanPreserveFloat{bits}"):
            features.add(f"nan_preserve_f{bits}")
        if getattr(v12, f"shaderDenormPreserveFloat{bits}"):
            features.add(f"denorm_preserve_f{bits}")
        if getattr(v12, f"shaderRoundingModeRTEFloat{bits}"):
            features.add(f"rte_f{bits}")
    if v13.integerDotProduct4x8BitPackedSignedAccelerated:
        features.add("int_dot_fast")
    if v11.subgroupSupportedStages & compute:
        features |= {n for bit, n in SUBGROUP_OPERATIONS.items() if v11.subgroupSupportedOperations >> bit & 1}
    features -= hidden
    missing = [n for n in REQUIRED if n not in present]

    count = ffi.new("uint32_t *")
    lib.vkGetPhysicalDeviceQueueFamilyProperties(device, count, ffi.NULL)
    families = ffi.new("VkQueueFamilyProperties[]", max(1, count[0]))
    lib.vkGetPhysicalDeviceQueueFamilyProperties(device, count, families)
    family = next((i for i in range(count[0]) if families[i].queueFlags & 2), None)
    if family is None:
        return _unusable(index, name, api, kind, device, "it has no compute queue")

    memory = ffi.new("VkPhysicalDeviceMemoryProperties *")
    lib.vkGetPhysicalDeviceMemoryProperties(device, memory)
    heaps = tuple(Heap(memory.memoryHeaps[i].size, bool(memory.memoryHeaps[i].flags & 1)) for i in range(memory.memoryHeapCount))
    types = [memory.memoryTypes[i] for i in range(memory.memoryTypeCount)]
    local = max((heaps[t.heapIndex].size for t in types if t.propertyFlags & 1), default=0)
    mapped = max((heaps[t.heapIndex].size for t in types if t.propertyFlags & 7 == 7), default=0)

    size, groups = limits.maxComputeWorkGroupSize, limits.maxComputeWorkGroupCount
    coop_matrices = _coop_matrices(instance, device) if "coop_matrix" in features else ()
    one_size = v13.minSubgroupSize == v13.maxSubgroupSize or features >= {"full_subgroups", "subgroup_size_control"}
    if one_size and "subgroup_basic" in features:
        features |= {name for name, (a, c, k) in MATRIX_UNITS.items() if _has_unit(coop_matrices, a, c, k)} - hidden
    return DeviceInfo(
        index=index,
        name=name,
        uuid=bytes(v11.deviceUUID).hex(),
        vendor_id=int(first.vendorID),
        device_id=int(first.deviceID),
        driver=f"{ffi.string(v12.driverName).decode()} {ffi.string(v12.driverInfo).decode()}".strip(),
        driver_version=int(first.driverVersion),
        api_version=api,
        kind=kind,
        limits=Limits(
            shared_memory=int(limits.maxComputeSharedMemorySize),
            workgroup_invocations=int(limits.maxComputeWorkGroupInvocations),
            workgroup_size=(int(size[0]), int(size[1]), int(size[2])),
            workgroup_count=(int(groups[0]), int(groups[1]), int(groups[2])),
            push_constants=int(limits.maxPushConstantsSize),
            max_allocation=int(v11.maxMemoryAllocationSize),
            max_buffer=int(v13.maxBufferSize),
            subgroup_size=int(v11.subgroupSize),
            subgroup_min=int(v13.minSubgroupSize),
            subgroup_max=int(v13.maxSubgroupSize),
        ),
        features=frozenset(features),
        coop_matrices=coop_matrices,
        heaps=heaps,
        timestamp_period=float(limits.timestampPeriod),
        timestamp_bits=int(families[family].timestampValidBits),
        queue_family=family,
        direct_input=local > 0 and mapped * 2 >= local,
        unusable=f"it lacks {', '.join(missing)}" if missing else "",
        extensions=extensions,
        handle=device,
    )


def _unusable(index: int, name: str, api: tuple[int, int, int], kind: str, device: Any, why: str) -> DeviceInfo:
    none = Limits(0, 0, (0, 0, 0), (0, 0, 0), 0, 0, 0, 0, 0, 0)
    no: frozenset[str] = frozenset()
    return DeviceInfo(index, name, "", 0, 0, "", 0, api, kind, none, no, (), (), 0.0, 0, 0, False, why, no, device)


COMPONENTS = {0: "f16", 1: "f32", 2: "f64", 3: "s8", 4: "s16", 5: "s32", 6: "s64", 7: "u8", 8: "u16", 9: "u32", 10: "u64"}
COMPONENTS |= {1000141000: "bf16", 1000491002: "e4m3", 1000491003: "e5m2"}


def _coop_matrices(instance: Instance, device: Any) -> tuple[CoopMatrix, ...]:
    vk = load()
    ffi = vk.ffi
    name = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
    ask = instance.function(name, f"PFN_{name}")
    if ask == ffi.NULL:
        return ()
    count = ffi.new("uint32_t *")
    check(ask(device, count, ffi.NULL), name)
    found = ffi.new("VkCooperativeMatrixPropertiesKHR[]", max(1, count[0]))
    for i in range(count[0]):
        found[i].sType = vk.VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR
    check(ask(device, count, found), name)

    def kind(component: Any) -> str:
        return COMPONENTS.get(int(ffi.cast("uint32_t", component)), "other")

    return tuple(
        CoopMatrix(
            p.MSize,
            p.NSize,
            p.KSize,
            kind(p.AType),
            kind(p.BType),
            kind(p.CType),
            kind(p.ResultType),
            bool(p.saturatingAccumulation),
        )
        for p in (found[i] for i in range(count[0]))
        if p.scope == 3  # subgroup
    )


def _has_unit(matrices: Sequence[CoopMatrix], operands: str, sums: str, depth: int) -> bool:
    return any(
        (c.m, c.n, c.k) == (16, 16, depth) and {c.a, c.b} == {operands} and {c.c, c.result} == {sums} and not c.saturating
        for c in matrices
    )


def choose(devices: Sequence[DeviceInfo], selector: str | None) -> DeviceInfo:
    """The device that *selector* names: its index, its UUID, or part of its name; None or "": the best usable one.

    A software device is taken unasked only where there is no GPU, also none that cannot be used.
    """
    if not devices:
        raise DeviceError(NO_DEVICE)
    shown = "\n".join(f"  {d}" + (f", not usable: {d.unusable}" if d.unusable else "") for d in devices)
    if not selector:
        usable = [d for d in devices if not d.unusable]
        if not usable:
            raise DeviceError(f"No Vulkan device here is usable:\n{shown}")
        best = min(usable, key=lambda d: (PREFERENCE.index(d.kind), d.index))
        if best.kind == "cpu" and any(d.kind != "cpu" for d in devices):
            raise DeviceError(f"No GPU here is usable, and a software device has to be asked for by name or index:\n{shown}")
        return best
    wanted = selector.strip().lower()
    if wanted.isdecimal() and len(wanted) < 8:
        found = [d for d in devices if d.index == int(wanted)]
    else:
        uuid = wanted.replace("-", "")
        found = [d for d in devices if d.uuid and d.uuid == uuid] or [d for d in devices if wanted in d.name.lower()]
    if not found:
        raise DeviceError(f"No Vulkan device is {selector!r} (an index, a UUID or part of a name). There are:\n{shown}")
    if len({d.name for d in found}) > 1:
        raise DeviceError(f"{selector!r} fits several Vulkan devices; give an index or a UUID. There are:\n{shown}")
    if found[0].unusable:
        raise DeviceError(f"The Vulkan device {found[0]} cannot be used: {found[0].unusable}.")
    return found[0]
