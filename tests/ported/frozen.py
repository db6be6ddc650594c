import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

def build_model(num_classes):
    backbone = nn.Sequential(nn.Linear(10, 20), nn.ReLU())
    head = nn.Linear(20, num_classes)
    model = nn.Sequential(backbone, head)
    for p in model[0].parameters():
        p.requires_grad = False
    return model

def main():
    torch.manual_seed(8)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    X, Y = torch.randn(128, 10), torch.randint(0, 3, (128,))
    loaders = {k: DataLoader(TensorDataset(X[s], Y[s]), batch_size=32, shuffle=k == "train")
               for k, s in {"train": slice(0, 96), "val": slice(96, 128)}.items()}
    sizes = {k: len(l.dataset) for k, l in loaders.items()}
    model = build_model(3).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1, momentum=0.9)
    for epoch in range(2):
        for phase in ["train", "val"]:
            model.train(phase == "train")
            running_loss, running_corrects = 0.0, 0
            for inputs, labels in loaders[phase]:
                inputs, labels = inputs.to(device), labels.to(device)
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data)
            epoch_loss = running_loss / sizes[phase]
            epoch_acc = running_corrects.double() / sizes[phase]
            print(f"{phase} Loss: {epoch_loss:.4f} Acc: {epoch_acc:.4f}")

main()
